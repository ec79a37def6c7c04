-- act_norm_ratio says where, topk_overlap that the routers below agree.
SELECT o.began AS step_start, o.last AS step_end, start AS observed, 0.0 AS expected, segment, starts_at AS layer,
   'act_norm_ratio' AS signal
FROM origin o JOIN gap g USING (segment)
WHERE main AND start >= $least AND (routers > 0 OR starts_at >= first_layer + $second OR turn < $gain)
   AND coalesce(lopsided, 1) >= $lopsided
