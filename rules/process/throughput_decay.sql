-- Beyond for good: from the onset on at least half of the rows, which is to say their median, stay beyond the bound.
WITH v AS (SELECT segment, step, response_length AS l, step_time AS s,
    CASE WHEN tflops IS NOT NULL THEN 'tflops' WHEN mfu IS NOT NULL THEN 'mfu' ELSE 'tokens_per_s' END AS signal,
    coalesce(tflops, mfu, tokens_per_s) AS x
    FROM train
    WHERE fin(coalesce(tflops, mfu, tokens_per_s))),
t AS (SELECT *, row_number() OVER (PARTITION BY segment, signal ORDER BY step) AS k,
    count(*) OVER (PARTITION BY segment, signal) AS n
    FROM v),
b AS (SELECT segment, signal, any_value(n) AS n, median(x) FILTER (WHERE k > 2 AND k <= greatest(8, n / 5)) AS early,
    1.4826 * mad(x) FILTER (WHERE k > 2 AND k <= greatest(8, n / 5)) AS sigma,
    median(x) FILTER (WHERE k > n - greatest(5, n / 20)) AS late,
    median(l) FILTER (WHERE k > 2 AND k <= greatest(8, n / 5)) AS l_early,
    median(l) FILTER (WHERE k > n - greatest(5, n / 20)) AS l_late, median(s) AS seconds
    FROM t
    GROUP BY segment, signal
    HAVING late < $ratio * early),
h AS (SELECT t.*, k > 2 AND x < $ratio * early AS beyond FROM t JOIN b USING (segment, signal)),
m AS (SELECT *, share_left(beyond, (segment, signal), step) AS share FROM h),
o AS (SELECT segment, signal, min(step) FILTER (WHERE beyond AND share >= 0.5) AS step_start, max(step) AS step_end
    FROM m
    GROUP BY segment, signal)
SELECT step_start, step_end, late AS observed, early AS expected, segment, signal, late / early AS times, $ratio AS ratio
FROM b JOIN o USING (segment, signal)
WHERE n >= 20 AND late < $ratio * early AND early - late > $noise * sigma AND step_start IS NOT NULL
    AND coalesce(l_late >= $length * l_early, true) AND coalesce(seconds >= $floor, true)
ORDER BY step_start
