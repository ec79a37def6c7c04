WITH t AS (SELECT segment, step, entropy AS x, coalesce(score, reward) AS r, row_number() OVER (PARTITION BY segment ORDER BY step) AS k, count(*) OVER (PARTITION BY segment) AS n
    FROM train WHERE fin(entropy)),
b AS (SELECT segment, any_value(n) AS n, median(x) FILTER (WHERE k <= greatest(5, n / 10)) AS early, median(x) FILTER (WHERE k > n - greatest(5, n / 20)) AS late,
        median(r) FILTER (WHERE k <= greatest(5, n / 10)) AS r_early, median(r) FILTER (WHERE k > n - greatest(5, n / 10)) AS r_late, max(r) - min(r) AS r_span FROM t GROUP BY segment)
SELECT (SELECT min(step) FROM t WHERE t.segment = b.segment AND k > greatest(5, b.n / 10) AND (SELECT median(u.x) FROM t u WHERE u.segment = t.segment AND u.k >= t.k) > $ratio * early AND x > $ratio * early) AS step_start,
    (SELECT max(step) FROM t WHERE t.segment = b.segment) AS step_end, late AS observed, early AS expected, segment, $ratio AS ratio
FROM b WHERE n >= 20 AND late > $ratio * early AND late - early > $rise AND coalesce(r_late - r_early < $gain * r_span, true) ORDER BY step_start
