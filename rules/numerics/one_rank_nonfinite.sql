WITH t AS (SELECT segment, step, rank, bad(grad_norm__state) OR bad(loss__state) AS is_bad
    FROM rank
    WHERE coalesce(grad_norm__state, loss__state) IS NOT NULL),
f AS (SELECT segment, min(step) AS step FROM t WHERE is_bad GROUP BY segment),
s AS (SELECT t.segment, t.step, count(*) AS ranks, count(*) FILTER (WHERE is_bad) AS bad_ranks,
    min(rank) FILTER (WHERE is_bad) AS rank
    FROM t JOIN f USING (segment, step) GROUP BY t.segment, t.step)
SELECT step AS step_start, step AS step_end, bad_ranks::DOUBLE AS observed, 0.0 AS expected, segment, rank, ranks,
    bad_ranks
FROM s WHERE ranks >= 3 AND bad_ranks <= $share * ranks ORDER BY step_start
