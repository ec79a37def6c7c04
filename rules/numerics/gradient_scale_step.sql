-- A step parts the rows before it from the rows after it. Locally (8 rows on each side) the lowest of the upper side lie
-- above the highest of the lower; over the whole segment the two sides stay on their sides of the middle.
-- Quantiles over windows are dear: they are taken only around rows at which the means of both sides part by half the shift.
WITH t AS (SELECT *, ln(grad_norm) AS x, row_number() OVER (PARTITION BY segment ORDER BY step) AS k
    FROM train WHERE fin(grad_norm) AND grad_norm > 0),
m AS (SELECT segment, step, k, x, abs(avg(x) OVER (PARTITION BY segment ORDER BY step ROWS BETWEEN CURRENT ROW AND 7 FOLLOWING)
        - avg(x) OVER (PARTITION BY segment ORDER BY step ROWS BETWEEN 8 PRECEDING AND 1 PRECEDING)) > 0.5 * $shift AS apart
    FROM t),
around AS (SELECT *, max(apart::INT) OVER (PARTITION BY segment ORDER BY step ROWS BETWEEN 8 PRECEDING AND 8 FOLLOWING) AS near_one
    FROM m),
w AS (SELECT segment, step, k, x, apart, median(x) OVER b AS before, median(x) OVER a AS after, median(x) OVER near AS near,
        quantile_cont(x, 0.15) OVER b AS b_low, quantile_cont(x, 0.85) OVER b AS b_high,
        quantile_cont(x, 0.15) OVER a AS a_low, quantile_cont(x, 0.85) OVER a AS a_high,
        count(*) OVER b AS b_rows, count(*) OVER a AS a_rows
    FROM around WHERE near_one = 1
    WINDOW b AS (PARTITION BY segment ORDER BY step ROWS BETWEEN 8 PRECEDING AND 1 PRECEDING),
        a AS (PARTITION BY segment ORDER BY step ROWS BETWEEN CURRENT ROW AND 7 FOLLOWING),
        near AS (PARTITION BY segment ORDER BY step ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING)),
c AS (SELECT *, after - before AS d, sign(after - before) AS way,
    CASE WHEN after > before THEN a_low - b_high ELSE b_low - a_high END AS gap
    FROM w WHERE apart AND b_rows >= 5 AND a_rows >= 5),
best AS (SELECT * FROM c
    WHERE gap > CASE WHEN way > 0 THEN $gap ELSE $fall_gap END AND abs(d) > $shift AND exp(d) BETWEEN $least AND $most AND (x - near) * way > $sudden * abs(d)
    QUALIFY row_number() OVER (PARTITION BY segment ORDER BY gap DESC) = 1),
s AS (SELECT b.segment, any_value(b.step) AS step_start, max(t.step) AS step_end, any_value(b.d) AS d,
        exp(any_value(b.after)) AS observed, exp(any_value(b.before)) AS expected,
        avg(((t.x - (b.before + b.after) / 2) * b.way > 0)::INT) FILTER (WHERE t.k >= b.k) AS held,
        avg(((t.x - (b.before + b.after) / 2) * b.way < 0)::INT) FILTER (WHERE t.k < b.k) AS held_before,
        median(entropy) FILTER (WHERE t.k BETWEEN b.k - 6 AND b.k - 1) AS entropy_0,
        avg(entropy) FILTER (WHERE t.k BETWEEN b.k AND b.k + 1) AS entropy_1,
        median(response_length) FILTER (WHERE t.k BETWEEN b.k - 6 AND b.k - 1) AS length_0,
        avg(response_length) FILTER (WHERE t.k BETWEEN b.k AND b.k + 1) AS length_1,
        median(reward) FILTER (WHERE t.k BETWEEN b.k - 6 AND b.k - 1) AS reward_0,
        avg(reward) FILTER (WHERE t.k BETWEEN b.k AND b.k + 1) AS reward_1,
        median(loss) FILTER (WHERE t.k BETWEEN b.k - 6 AND b.k - 1) AS loss_0,
        avg(loss) FILTER (WHERE t.k BETWEEN b.k AND b.k + 1) AS loss_1,
        median(mismatch_logp_abs) FILTER (WHERE t.k BETWEEN b.k - 6 AND b.k - 1) AS gap_0,
        avg(mismatch_logp_abs) FILTER (WHERE t.k BETWEEN b.k AND b.k + 1) AS gap_1,
        median(advantage_max) FILTER (WHERE t.k BETWEEN b.k - 6 AND b.k - 1) AS advantage_0,
        avg(advantage_max) FILTER (WHERE t.k BETWEEN b.k AND b.k + 1) AS advantage_1,
        avg(zero_std_frac) FILTER (WHERE t.k BETWEEN b.k AND b.k + 1)
            - median(zero_std_frac) FILTER (WHERE t.k BETWEEN b.k - 6 AND b.k - 1) AS equal_groups,
        avg(truncated_frac) FILTER (WHERE t.k BETWEEN b.k AND b.k + 1)
            - median(truncated_frac) FILTER (WHERE t.k BETWEEN b.k - 6 AND b.k - 1) AS cut,
        avg(clip_frac) FILTER (WHERE t.k BETWEEN b.k AND b.k + 1)
            - median(clip_frac) FILTER (WHERE t.k BETWEEN b.k - 6 AND b.k - 1) AS clipped,
        max(lr) FILTER (WHERE t.k BETWEEN b.k AND b.k + 1) AS lr_1,
        median(lr) FILTER (WHERE t.k BETWEEN b.k - 6 AND b.k - 1) AS lr_0
    FROM t JOIN best b USING (segment) GROUP BY b.segment)
SELECT step_start, step_end, observed, expected, segment, exp(d) AS times,
    concat_ws(', ', CASE WHEN entropy_0 IS NOT NULL THEN 'entropy' END, CASE WHEN loss_0 IS NOT NULL THEN 'loss' END,
        CASE WHEN reward_0 IS NOT NULL THEN 'reward' END, CASE WHEN length_0 IS NOT NULL THEN 'response length' END) AS shown,
    CASE WHEN abs(exp(abs(d)) - round(exp(abs(d)))) <= 0.1 * sqrt(exp(abs(d))) / sqrt(2) AND d > 0
        THEN printf('; a factor near %d is that many ranks, micro-batches, or pipeline chunks summed', round(exp(d))::INT)
        ELSE '' END AS hint
FROM s
WHERE held >= $holds AND held_before >= $holds AND coalesce(entropy_0, loss_0, reward_0, length_0) IS NOT NULL
    AND coalesce(abs(entropy_1 - entropy_0) <= $same * abs(entropy_0), true)
    AND coalesce(abs(length_1 - length_0) <= $same * length_0, true)
    AND coalesce(abs(reward_1 - reward_0) <= 2 * $same * abs(reward_0), true)
    AND coalesce(loss_0 <= 0 OR loss_1 <= 0 OR abs(ln(loss_1 / loss_0)) <= $same OR abs(ln(loss_1 / loss_0) - d) <= 0.4, true)
    AND coalesce(d > 0 OR loss_0 <= 0 OR abs(loss_1 / loss_0 - 1) <= $learns, true)
    AND coalesce(gap_1 <= 2 * gap_0, true)
    AND coalesce(advantage_1 >= $same * advantage_0 OR advantage_0 <= 0, true)
    AND coalesce(equal_groups <= $moved, true) AND coalesce(cut <= $moved, true) AND coalesce(clipped <= $same * $moved, true)
    AND coalesce(lr_1 <= 3 * lr_0, true)
ORDER BY step_start
