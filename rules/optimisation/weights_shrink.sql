WITH t AS (SELECT segment, step, params_norm AS x, row_number() OVER w AS k,
        params_norm <= (1 - $share) * lag(params_norm) OVER w AS falls, lag(params_norm) OVER w AS before
    FROM train WHERE fin(params_norm) AND params_norm > 0 WINDOW w AS (PARTITION BY segment ORDER BY step)),
g AS (SELECT *, k - row_number() OVER (PARTITION BY segment ORDER BY step) AS island FROM t WHERE falls)
SELECT min(step) AS step_start, max(step) AS step_end, 1 - exp(median(ln(x / before))) AS observed, 0.0 AS expected, segment,
    arg_min(before, step) AS before, arg_max(x, step) AS after
FROM g GROUP BY segment, island HAVING count(*) >= $rows ORDER BY step_start
