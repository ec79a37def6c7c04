-- Beyond for good: from the onset on at least half of the rows, which is to say their median, stay beyond the bound.
WITH t AS (SELECT segment, step, grad_norm AS x, row_number() OVER (PARTITION BY segment ORDER BY step) AS k,
    count(*) OVER (PARTITION BY segment) AS n
    FROM train WHERE fin(grad_norm) AND grad_norm > 0),
base AS (SELECT segment, median(x) AS early
    FROM t
    WHERE n >= 12 AND k <= greatest($base_rows, $base_share * n)
    GROUP BY segment),
h AS (SELECT t.*, early, x > $ratio * early AS beyond FROM t JOIN base USING (segment)),
m AS (SELECT *, share_left(beyond, segment, step) AS share FROM h),
s AS (SELECT segment, any_value(early) AS early, median(x) FILTER (WHERE k > n - greatest(3, ceil($tail * n))) AS late,
    max(x) AS top, arg_max(step, x) AS top_step,
        min(step) FILTER (WHERE beyond AND share >= 0.5) AS step_start, max(step) AS step_end FROM m GROUP BY segment)
SELECT step_start, step_end, late AS observed, early AS expected, segment, late / early AS times, $ratio AS ratio,
    'root' AS role
FROM s WHERE late > $ratio * early AND late > $level
UNION ALL
SELECT top_step, top_step, top, early, segment, top / early, $ratio, 'benign'
    FROM s
    WHERE late <= $ratio * early AND top > $ratio * early AND top > $level
ORDER BY step_start
