-- Sums of the values and of values times steps stand for the series: equal series have equal ones.
WITH t AS (SELECT segment, rank, count(*) AS n, count(DISTINCT loss) AS distinct_values, sum(loss) AS total,
    sum(loss * step) AS weighted, min(step) AS step_start, max(step) AS step_end
    FROM rank
    WHERE fin(loss)
    GROUP BY segment, rank),
g AS (SELECT segment, n, total, weighted, count(*) AS twins, string_agg(rank, ', ' ORDER BY rank) AS members,
    min(rank) AS rank, any_value(step_start) AS step_start, any_value(step_end) AS step_end
    FROM t
    WHERE distinct_values >= $rows
    GROUP BY segment, n, total, weighted),
w AS (SELECT segment, sum(twins) AS ranks, max(twins) AS most, min(twins) AS fewest, count(*)
    FILTER (WHERE twins > 1) AS groups
    FROM g
    GROUP BY segment)
SELECT step_start, step_end, twins::DOUBLE AS observed, 1.0 AS expected, segment, rank::INTEGER AS rank, members,
    n AS rows_seen
FROM g JOIN w USING (segment)
WHERE twins > 1 AND groups = 1 AND fewest = 1 AND ranks >= $least AND twins <= ranks / 2
ORDER BY step_start
