WITH t AS (SELECT segment, step, update_ratio AS u, lr,
        coalesce(kl_ref, kl_old, reward, clip_frac) IS NOT NULL AS sampled
    FROM train WHERE fin(update_ratio) AND update_ratio > 0),
w AS (SELECT *, median(u) OVER b AS before, min(u) OVER b AS low, max(u) OVER b AS high, min(u) OVER a AS least,
        median(u) OVER a AS after, count(*) OVER b AS b_rows, count(*) OVER a AS a_rows, lag(lr) OVER s AS lr_before,
        max(step) OVER (PARTITION BY segment) AS last
    FROM t WINDOW s AS (PARTITION BY segment ORDER BY step),
        b AS (PARTITION BY segment ORDER BY step ROWS BETWEEN $rows PRECEDING AND 1 PRECEDING),
        a AS (PARTITION BY segment ORDER BY step ROWS BETWEEN CURRENT ROW AND 3 FOLLOWING))
SELECT step AS step_start, last AS step_end, after AS observed, before AS expected, segment, after / before AS times,
    CASE WHEN lr > 2 * lr_before THEN printf(' with the learning rate (%.3g -> %.3g)', lr_before, lr)
        WHEN lr IS NOT NULL THEN ' at the same learning rate' ELSE '' END AS rate_note
FROM w WHERE sampled AND b_rows >= $rows AND a_rows >= $rows AND least >= $rise * before AND high <= $steady * low
QUALIFY row_number() OVER (PARTITION BY segment ORDER BY step) = 1 ORDER BY step_start
