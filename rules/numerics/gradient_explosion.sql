WITH t AS (SELECT segment, step, grad_norm AS x, row_number() OVER (PARTITION BY segment ORDER BY step) AS k, count(*) OVER (PARTITION BY segment) AS n
    FROM train WHERE fin(grad_norm) AND grad_norm > 0),
base AS (SELECT segment, median(x) AS early, any_value(n) AS n FROM t WHERE k <= greatest($base_rows, $base_share * n) GROUP BY segment),
j AS (SELECT t.*, early, greatest(3, ceil($tail * t.n)) AS tail_rows FROM t JOIN base USING (segment) WHERE t.n >= 12),
e AS (SELECT segment, any_value(early) AS early, median(x) FILTER (WHERE k > n - tail_rows) AS late, max(x) AS top, arg_max(step, x) AS top_step,
        max(k) FILTER (WHERE x <= $ratio * early) AS last_calm FROM j GROUP BY segment),
s AS (SELECT e.*, (SELECT min(step) FROM j WHERE j.segment = e.segment AND k > coalesce(last_calm, 0) AND x > $ratio * early) AS since,
        (SELECT min(step) FROM j WHERE j.segment = e.segment AND x > $ratio * e.early AND k > greatest($base_rows, $base_share * n)
            AND (SELECT median(y.x) FROM j y WHERE y.segment = j.segment AND y.k >= j.k) > $ratio * e.early) AS first_persistent FROM e)
SELECT coalesce(first_persistent, since) AS step_start, (SELECT max(step) FROM j WHERE j.segment = s.segment) AS step_end, late AS observed, early AS expected, segment, late / early AS times, $ratio AS ratio, 'root' AS role
FROM s WHERE late > $ratio * early
UNION ALL
SELECT top_step, top_step, top, early, segment, top / early, $ratio, 'benign' FROM s WHERE late <= $ratio * early AND top > $ratio * early
ORDER BY step_start
