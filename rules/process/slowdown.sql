-- Beyond for good: from the onset on at least half of the rows, which is to say their median, stay beyond the bound.
WITH t AS (SELECT segment, step, step_time AS x, response_length AS l,
    row_number() OVER (PARTITION BY segment ORDER BY step) AS k, count(*) OVER (PARTITION BY segment) AS n
    FROM train
    WHERE fin(step_time) AND step_time > 0),
b AS (SELECT segment, any_value(n) AS n, median(x) FILTER (WHERE k > 2 AND k <= greatest(8, n / 5)) AS early,
    median(x) FILTER (WHERE k > n - greatest(5, n / 20)) AS late,
        median(l) FILTER (WHERE k > 2 AND k <= greatest(8, n / 5)) AS l_early,
            median(l) FILTER (WHERE k > n - greatest(5, n / 20)) AS l_late
            FROM t
            GROUP BY segment
            HAVING late > $ratio * early),
h AS (SELECT t.*, k > 2 AND x > $ratio * early AS beyond FROM t JOIN b USING (segment)),
m AS (SELECT *, share_left(beyond, segment, step) AS share FROM h),
v AS (SELECT t.segment, 1.4826 * median(abs(x - early)) AS sigma
    FROM t JOIN b USING (segment)
    WHERE k > 2 AND k <= greatest(8, t.n / 5)
    GROUP BY t.segment),
o AS (SELECT segment, min(step) FILTER (WHERE beyond AND share >= 0.5) AS step_start, max(step) AS step_end
    FROM m
    GROUP BY segment)
SELECT step_start, step_end, late AS observed, early AS expected, segment, late / early AS times, $ratio AS ratio
FROM b JOIN o USING (segment) JOIN v USING (segment)
    WHERE n >= 20 AND late > $ratio * early AND late - early > greatest($least, $noise * sigma)
        AND coalesce(l_late <= $length * l_early, true)
    ORDER BY step_start
