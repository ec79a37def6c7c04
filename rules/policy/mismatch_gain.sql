-- act_norm_ratio shifts together; topk_overlap of the first router tells a gain from a difference that turns what it scales.
SELECT o.began AS step_start, o.last AS step_end, sign(first_shift) * least_shift AS observed,
   sign(first_shift) * most_shift AS expected, segment, 'act_norm_ratio' AS signal
FROM origin o JOIN gap g USING (segment)
WHERE main AND layers >= 3 AND same_sign AND least_shift >= $least AND coalesce(growth, 1) < $growth
   AND ((coalesce(loss_first, 0) < $agree AND turn < $harmless AND most_shift < $same * least_shift)
       OR (stray_input IS NOT NULL AND least_shift >= $below AND most_shift < $close * least_shift))
