-- Small shifts of act_norm_ratio, and topk_overlap lost no more than they explain.
WITH g AS (SELECT * FROM gap WHERE main)
SELECT o.began AS step_start, o.last AS step_end, most_shift AS observed, 0.0 AS expected, segment, 'act_norm_ratio' AS signal
FROM origin o JOIN g USING (segment)
WHERE layers >= 2 AND starts_at IS NULL AND late < $level
   AND most_shift <= CASE WHEN routers > 0 THEN $shift WHEN same_sign THEN $shift_same ELSE $shift_alone END
   AND coalesce(tail, 1.5) BETWEEN $least AND CASE WHEN routers > 0 THEN $most ELSE $most_alone END
   AND coalesce(lopsided, 1) >= $lopsided AND NOT coalesce(one_sided >= $one_sided AND late < $far, false)
   AND coalesce(growth, 1) < $growth AND coalesce(idle, 0) < $idle
   AND NOT coalesce(loss_first >= 2 * $agree AND router_excess >= $excess, false)
   AND NOT coalesce(loss_first < $agree AND (loss_second >= $next OR (stray_input < $own / 4 AND stray_first >= $own)), false)
   AND NOT coalesce(same_sign AND least_shift >= $first, false) AND NOT coalesce(abs(first_shift) >= $first AND tail >= $input, false)
