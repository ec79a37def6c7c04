-- Small shifts of act_norm_ratio under a gap far larger than they are, and topk_overlap lost no more than they explain.
WITH g AS (SELECT * FROM gap WHERE main AND onset IS NOT NULL AND after >= $opened * before)
SELECT o.began AS step_start, o.last AS step_end, most_shift AS observed, 0.0 AS expected, segment, 'act_norm_ratio' AS signal
FROM origin o JOIN g USING (segment)
WHERE layers >= 2 AND starts_at IS NULL AND late < $level
   AND (most_shift <= $head OR (most_shift <= CASE WHEN routers > 0 THEN $shift ELSE $shift_alone END
       AND (turn >= $turn OR (loss_first >= $flips AND loss >= $per_shift * most_shift))))
   AND (most_stray <= $digits OR first_stray >= $touched * most_stray)
   AND coalesce(tail, 1.5) BETWEEN CASE WHEN most_shift <= $head THEN $least_head ELSE $least END AND CASE WHEN routers > 0 THEN $most ELSE $most_alone END
   AND coalesce(lopsided, 1) >= $lopsided AND NOT coalesce(one_sided >= $one_sided, false)
   AND coalesce(growth, 1) < $growth AND coalesce(idle, 0) < $idle
   AND coalesce(router_excess, 0) < $excess
   AND (routers > 0 OR most_shift <= $head OR NOT EXISTS (SELECT 1 FROM train t WHERE t.segment = o.segment AND aux_loss > 0))
   AND NOT coalesce(loss_first < $agree AND (loss_second >= $next OR (stray_input < $own / 4 AND stray_first >= $own)), false)
