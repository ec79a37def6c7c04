-- A quoted log may begin anywhere: where its first row has many rows before it (by its step, or by its epoch), what came
-- before the first row is unknown, and nothing is said.
WITH t AS (SELECT segment, step, row_number() OVER w AS k, loss,
    bad(grad_norm__state) AS is_bad, avg(bad(grad_norm__state)::INT) OVER (PARTITION BY segment) AS share,
        (max(step) OVER (PARTITION BY segment) - step) / nullif(count(*) OVER (PARTITION BY segment) - 1, 0) AS apart,
            epoch, (max(epoch) OVER (PARTITION BY segment) - epoch) / nullif(count(epoch) OVER (PARTITION BY segment) - 1, 0) AS epochs
    FROM train WHERE grad_norm__state IS NOT NULL WINDOW w AS (PARTITION BY segment ORDER BY step))
SELECT step AS step_start, step AS step_end, loss AS observed, NULL::DOUBLE AS expected, segment
FROM t
WHERE k = 1 AND is_bad AND share >= $share AND fin(loss) AND loss <> 0
    AND step <= $before * greatest(coalesce(apart, 1), 1)
    AND coalesce(epoch <= $before * coalesce(epochs, epoch) + $rounded, true)
ORDER BY step_start
