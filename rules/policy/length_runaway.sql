WITH t AS (SELECT segment, step, response_length AS x, coalesce(score, reward) AS r, row_number() OVER (PARTITION BY segment ORDER BY step) AS k, count(*) OVER (PARTITION BY segment) AS n FROM train WHERE fin(response_length) AND response_length > 0),
b AS (SELECT segment, any_value(n) AS n, median(x) FILTER (WHERE k <= greatest(5, n / 10)) AS early, median(x) FILTER (WHERE k > n - greatest(5, n / 20)) AS late,
        median(r) FILTER (WHERE k <= greatest(5, n / 10)) AS r_early, median(r) FILTER (WHERE k > n - greatest(5, n / 20)) AS r_late, max(r) - min(r) AS r_span, max(step) AS step_end FROM t GROUP BY segment)
SELECT (SELECT min(step) FROM t WHERE t.segment = b.segment AND x > $ratio * early AND (SELECT median(u.x) FROM t u WHERE u.segment = t.segment AND u.k >= t.k) > $ratio * early) AS step_start,
    step_end, late AS observed, early AS expected, segment, $ratio AS ratio
FROM b WHERE n >= 20 AND late > $ratio * early AND r_late - r_early < $gain * r_span ORDER BY step_start
