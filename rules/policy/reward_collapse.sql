WITH t AS (SELECT segment, step, coalesce(score, reward) AS raw, row_number() OVER w AS k,
    count(*) OVER (PARTITION BY segment) AS n,
        median(coalesce(score, reward)) OVER (PARTITION BY segment
            ORDER BY step ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) AS x,
            abs(coalesce(score, reward) - lag(coalesce(score, reward)) OVER w) AS d
    FROM train WHERE fin(coalesce(score, reward)) WINDOW w AS (PARTITION BY segment ORDER BY step)),
b AS (SELECT segment, any_value(n) AS n, median(raw) FILTER (WHERE k <= 5) AS opening,
    max(x) FILTER (WHERE k >= $window) AS best, arg_max(k, x) FILTER (WHERE k >= $window) AS best_k,
        median(raw) FILTER (WHERE k > n - greatest(10, n / 20)) AS late, 1.4826 / sqrt(2) * median(d) AS sigma,
            min(raw) AS lowest, max(step) AS step_end
            FROM t
            GROUP BY segment)
SELECT (SELECT min(step)
    FROM t
    WHERE t.segment = b.segment
        AND t.k > coalesce((SELECT max(u.k)
            FROM t u
            WHERE u.segment = b.segment AND u.k >= best_k AND u.raw >= best - $fall * (best - late)),
            best_k)) AS step_start,
    step_end, late AS observed, best AS expected, segment
FROM b
    WHERE n >= 30 AND best - late > $noise * sigma
        AND best - late >= $fall * greatest(best - opening, 0.5 * (best - lowest))
        AND late < opening + 0.5 * greatest(best - opening, 0)
    AND best_k <= n - greatest(10, n / 20) ORDER BY step_start
