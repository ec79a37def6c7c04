-- Per step the median and spread of the ranks; then per rank the first step from which on it is far away for good.
WITH t AS (SELECT segment, step, rank, step_time AS x FROM rank WHERE fin(step_time) AND step_time > 0),
m AS (SELECT segment, step, median(x) AS mid, 1.4826 * mad(x) AS sigma, count(*) AS ranks FROM t GROUP BY segment,
    step),
f AS (SELECT t.*, mid, ranks, ranks >= $least_ranks
    AND x > $ratio * mid AND x - mid > greatest($least, $sigmas * sigma) AS far
    FROM t JOIN m USING (segment, step)),
one AS (SELECT segment, rank FROM f GROUP BY segment, rank HAVING count(*) FILTER (WHERE far) >= $rows),
h AS (SELECT f.*, share_left(far, (segment, rank), step) AS share FROM f JOIN one USING (segment, rank)),
o AS (SELECT segment, rank, min(step) FILTER (WHERE far AND share >= $hold) AS step_start, max(step) AS step_end
    FROM h
    GROUP BY segment, rank),
s AS (SELECT segment, rank, any_value(step_start) AS step_start, any_value(step_end) AS step_end,
    median(x) AS observed,
    median(mid) AS expected, max(ranks) AS ranks, count(*) AS seen
    FROM h JOIN o USING (segment, rank)
    WHERE step >= step_start
    GROUP BY segment, rank)
SELECT step_start, step_end, observed, expected, segment, rank, ranks
FROM s
WHERE seen >= $rows AND (SELECT count(*) FROM s x WHERE x.segment = s.segment) = 1
ORDER BY step_start
