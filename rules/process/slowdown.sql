WITH t AS (SELECT segment, step, step_time AS x, response_length AS l, row_number() OVER (PARTITION BY segment ORDER BY step) AS k, count(*) OVER (PARTITION BY segment) AS n FROM train WHERE fin(step_time) AND step_time > 0),
b AS (SELECT segment, any_value(n) AS n, median(x) FILTER (WHERE k > 2 AND k <= greatest(8, n / 5)) AS early, median(x) FILTER (WHERE k > n - greatest(5, n / 20)) AS late,
        median(l) FILTER (WHERE k > 2 AND k <= greatest(8, n / 5)) AS l_early, median(l) FILTER (WHERE k > n - greatest(5, n / 20)) AS l_late, max(step) AS step_end FROM t GROUP BY segment)
SELECT (SELECT min(step) FROM t WHERE t.segment = b.segment AND k > 2 AND x > $ratio * early AND (SELECT median(u.x) FROM t u WHERE u.segment = t.segment AND u.k >= t.k) > $ratio * early) AS step_start,
    step_end, late AS observed, early AS expected, segment, late / early AS times, $ratio AS ratio
FROM b WHERE n >= 20 AND late > $ratio * early AND coalesce(l_late <= $length * l_early, true) ORDER BY step_start
