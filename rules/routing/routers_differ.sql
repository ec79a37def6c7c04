-- act_norm_ratio of the layers up to the first router says what its input explains; without it only a large loss of
-- topk_overlap counts.
SELECT began AS step_start, last AS step_end, loss_first AS observed, 0.0 AS expected, segment, first_router AS layer,
   coalesce(router_excess, loss_first / $alone) AS excess, 'topk_overlap' AS signal,
   CASE WHEN loss_first < $sure AND router_excess < $far THEN 0.5 WHEN router_excess IS NULL THEN 0.62 END AS strength
FROM origin
WHERE loss_first >= $least
   AND coalesce(router_excess >= $excess OR (loss_first >= $many AND router_excess >= $some), loss_first >= $alone)
