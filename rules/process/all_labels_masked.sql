-- Where the weights broke, a loss above 0 came first. The filter prints 0.0 for a NaN loss, so 0 counts as no loss.
SELECT min(step) FILTER (WHERE bad(eval_loss__state)) AS step_start, max(step) FILTER (WHERE bad(eval_loss__state)) AS step_end, NULL::DOUBLE AS observed, NULL::DOUBLE AS expected, segment
FROM train GROUP BY segment
HAVING avg(bad(eval_loss__state)::INT) FILTER (WHERE eval_loss__state IS NOT NULL) >= $share AND max(loss) <= 0
ORDER BY step_start
