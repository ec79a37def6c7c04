-- Beyond for good: from the onset on at least half of the rows, which is to say their median, stay beyond the bound.
WITH t AS (SELECT segment, step, staleness AS x, row_number() OVER (PARTITION BY segment ORDER BY step) AS k,
    count(*) OVER (PARTITION BY segment) AS n
    FROM train
    WHERE fin(staleness)),
b AS (SELECT segment, any_value(n) AS n, median(x) FILTER (WHERE k <= greatest(5, n / 10)) AS early,
    median(x) FILTER (WHERE k > n - greatest(5, n / 20)) AS late
    FROM t
    GROUP BY segment),
h AS (SELECT t.*, x > $level AND x > $ratio * early AS beyond FROM t JOIN b USING (segment)),
m AS (SELECT *, share_left(beyond, segment, step) AS share FROM h),
o AS (SELECT segment, min(step) FILTER (WHERE beyond AND share >= 0.5) AS step_start, max(step) AS step_end
    FROM m
    GROUP BY segment)
SELECT step_start, step_end, late AS observed, early AS expected, segment, $ratio AS ratio
FROM b JOIN o USING (segment)
WHERE n >= 10 AND late > $level AND late > $ratio * early AND step_start IS NOT NULL
ORDER BY step_start
