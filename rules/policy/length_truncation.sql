WITH t AS (SELECT segment, step, truncated_frac AS x, coalesce(score, reward) AS r, row_number() OVER (PARTITION BY segment ORDER BY step) AS k, count(*) OVER (PARTITION BY segment) AS n FROM train WHERE fin(truncated_frac)),
b AS (SELECT segment, any_value(n) AS n, median(x) FILTER (WHERE k <= greatest(5, n / 10)) AS early, median(x) FILTER (WHERE k > n - greatest(3, n / 20)) AS late,
        median(r) FILTER (WHERE k <= greatest(5, n / 10)) AS r_early, median(r) FILTER (WHERE k > n - greatest(3, n / 20)) AS r_late, max(step) AS step_end FROM t GROUP BY segment)
SELECT (SELECT min(step) FROM t WHERE t.segment = b.segment AND x > $level AND (SELECT median(u.x) FROM t u WHERE u.segment = t.segment AND u.k >= t.k) > $level) AS step_start, step_end, late AS observed, early AS expected, segment,
    $level AS level, CASE WHEN r_late IS NULL THEN '' ELSE printf('; reward %.3g -> %.3g', r_early, r_late) END AS reward_note
FROM b WHERE n >= 10 AND late > $level AND late - early > $rise AND coalesce(r_late <= r_early + 0.02, true) ORDER BY step_start
