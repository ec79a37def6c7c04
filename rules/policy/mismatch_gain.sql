-- act_norm_ratio shifts together; topk_overlap of the first router tells a gain from a difference that turns what it scales.
WITH g AS (SELECT segment, after - coalesce(before, 0) AS rise, late, growth FROM gap WHERE main)
SELECT began AS step_start, last AS step_end, sign(first_shift) * least_shift AS observed,
   sign(first_shift) * most_shift AS expected, segment, 'act_norm_ratio' AS signal
FROM origin JOIN g USING (segment)
WHERE layers >= 3 AND same_sign AND least_shift >= $least AND most_shift < $same * least_shift AND coalesce(growth, 1) < $growth
   AND ((coalesce(loss_first, 0) < $agree AND coalesce(rise, late) < $harmless * least_shift)
       OR (stray_input IS NOT NULL AND least_shift >= $below))
