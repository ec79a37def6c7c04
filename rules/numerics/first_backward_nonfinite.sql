WITH t AS (SELECT segment, step, row_number() OVER (PARTITION BY segment ORDER BY step) AS k, loss,
    bad(grad_norm__state) AS is_bad,
        avg(bad(grad_norm__state)::INT) OVER (PARTITION BY segment) AS share
    FROM train WHERE grad_norm__state IS NOT NULL)
SELECT step AS step_start, step AS step_end, loss AS observed, NULL::DOUBLE AS expected, segment
FROM t WHERE k = 1 AND is_bad AND share >= $share AND fin(loss) AND loss <> 0 ORDER BY step_start
