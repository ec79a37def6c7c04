WITH t AS (SELECT segment, step, update_ratio AS u, coalesce(update_ratio / nullif(lr, 0), update_ratio) AS x, grad_norm,
        params_norm, entropy, loss, row_number() OVER (PARTITION BY segment ORDER BY step) AS k
    FROM train WHERE fin(update_ratio) AND update_ratio > 0 AND coalesce(lr > 0, true)),
w AS (SELECT *, min(x) OVER b AS low, max(x) OVER a AS high, median(x) OVER b AS before, median(x) OVER a AS after,
        median(u) OVER b AS u_before, median(u) OVER a AS u_after, lag(x) OVER (PARTITION BY segment ORDER BY step) AS last,
        count(*) OVER b AS b_rows, count(*) OVER a AS a_rows,
        median(grad_norm) OVER a / nullif(median(grad_norm) OVER b, 0) AS gradient,
        median(params_norm) OVER a / nullif(median(params_norm) OVER b, 0) AS weights,
        abs(entropy - median(entropy) OVER b) / nullif(median(entropy) OVER b, 0) AS entropy_moved,
        abs(loss - median(loss) OVER b) / nullif(abs(median(loss) OVER b), 0) AS loss_moved
    FROM t WINDOW b AS (PARTITION BY segment ORDER BY step ROWS BETWEEN $window PRECEDING AND 1 PRECEDING),
        a AS (PARTITION BY segment ORDER BY step ROWS BETWEEN CURRENT ROW AND $window FOLLOWING)),
best AS (SELECT * FROM w
    WHERE b_rows >= $window AND a_rows >= $window AND low > $apart * high
        AND ln(last / x) > $sudden * ln(before / after) AND gradient BETWEEN 0.2 AND 5 AND coalesce(weights <= $grown, true)
        AND (low > $most * high OR coalesce(entropy_moved, 0) <= $forward AND coalesce(loss_moved, 0) <= $forward)
    QUALIFY row_number() OVER (PARTITION BY segment ORDER BY low / high DESC) = 1),
s AS (SELECT b.segment, b.step AS step_start, max(t.step) AS step_end, any_value(u_after) AS observed,
        any_value(u_before) AS expected, any_value(before / after) AS times, median(t.x) AS rest, any_value(before) AS before,
        any_value(low / high) AS apart
    FROM best b JOIN t ON t.segment = b.segment AND t.k >= b.k GROUP BY b.segment, b.step)
SELECT step_start, step_end, observed, expected, segment, times, CASE WHEN apart < $most THEN 0.6 END AS strength
FROM s WHERE rest * $apart < before
ORDER BY step_start
