WITH t AS (SELECT segment, step, loss AS x, lr, row_number() OVER w AS k, count(*) OVER (PARTITION BY segment) AS n,
    abs(loss - lag(loss) OVER w) AS d, step - lag(step) OVER w AS gap
    FROM train WHERE fin(loss) AND loss > 0 WINDOW w AS (PARTITION BY segment ORDER BY step)),
s AS (SELECT segment, any_value(n) AS n, min(step) AS step_start, max(step) AS step_end, median(gap) AS gap,
        median(x) FILTER (WHERE k <= n / 3) AS early, median(x) FILTER (WHERE k > n - n / 3) AS late,
            1.4826 / sqrt(2) * median(d) AS sigma,
        median(x) FILTER (WHERE k <= 5) AS opening, max(lr) AS top_lr, arg_max(lr, k) AS last_lr
            FROM t
            GROUP BY segment)
SELECT step_start, step_end, late AS observed, early AS expected, segment, n AS rows_seen,
    CASE WHEN last_lr = top_lr AND top_lr < 1e-6 THEN printf('; the learning rate is still warming up at %.2g', last_lr)
        ELSE '' END AS lr_note
FROM s
WHERE n >= 50 AND step_start <= $start * gap AND late > (1 - $gain) * early AND early - late < $noise * sigma
    AND late <= 1.3 * early AND late > (1 - 3 * $gain) * opening AND sigma > 0
ORDER BY step_start
