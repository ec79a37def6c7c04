WITH t AS (SELECT segment, step, loss AS x, row_number() OVER w AS k, count(*) OVER (PARTITION BY segment) AS n,
    abs(loss - lag(loss) OVER w) AS d,
        median(loss) OVER (PARTITION BY segment ORDER BY step ROWS BETWEEN $window PRECEDING AND 1 PRECEDING) AS base
    FROM train WHERE fin(loss) AND loss > 0 WINDOW w AS (PARTITION BY segment ORDER BY step)),
j AS (SELECT *, 1.4826 / sqrt(2) * median(d) OVER (PARTITION BY segment) AS sigma,
        coalesce(max(d) OVER (PARTITION BY segment ORDER BY step ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
            0) AS restless
            FROM t),
hit AS (SELECT *
    FROM j
    WHERE k > 1 AND base > 1e-3 AND x > $jump * base AND CASE WHEN n >= 20 THEN x - base > $noise * sigma
        ELSE x - base >= $quiet * restless AND (k > 2 OR x > $alone * base) END),
l AS (SELECT segment, median(x) AS now
    FROM (SELECT *, row_number() OVER (PARTITION BY segment ORDER BY step DESC) AS back FROM t)
    WHERE back <= CASE WHEN n >= 20 THEN 5 ELSE 1 END
    GROUP BY segment),
-- runs of neighbouring hits are one spike; it is judged against the level before its first row
g AS (SELECT *, k - row_number() OVER (PARTITION BY segment ORDER BY k) AS island FROM hit),
s AS (SELECT segment, min(step) AS step_start, max(step) AS step_end, max(x) AS observed, arg_min(base, k) AS expected,
    any_value(n) AS n, any_value(sigma) AS sigma, min(k) AS first_k
    FROM g
    GROUP BY segment, island),
r AS (SELECT s.*, now, (SELECT min(x) FROM t WHERE t.segment = s.segment AND t.step >= s.step_start) AS low,
    row_number() OVER (PARTITION BY segment ORDER BY step_start) AS nth
    FROM s JOIN l USING (segment))
SELECT step_start, step_end, observed, expected, segment, observed / expected AS times, now,
    CASE WHEN now > $back * expected AND CASE WHEN n < 20 THEN low > $back * expected
        ELSE now - expected > $left * sigma END THEN 'root' ELSE 'benign' END AS role, CASE
        WHEN first_k = 2 THEN 0.55 END AS strength
FROM r WHERE nth <= 4 ORDER BY step_start
