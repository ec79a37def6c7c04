-- Beyond for good: from the onset on at least half of the rows, which is to say their median, stay beyond the bound.
WITH t AS (SELECT segment, step, entropy AS x, coalesce(score, reward) AS r,
    row_number() OVER (PARTITION BY segment ORDER BY step) AS k, count(*) OVER (PARTITION BY segment) AS n
    FROM train
    WHERE fin(entropy)),
b AS (SELECT segment, any_value(n) AS n, median(x) FILTER (WHERE k <= greatest(5, n / 10)) AS early,
    median(x) FILTER (WHERE k > n - greatest(5, n / 20)) AS late,
        median(r) FILTER (WHERE k <= greatest(5, n / 10)) AS r_early,
            median(r) FILTER (WHERE k > n - greatest(5, n / 10)) AS r_late, max(r) - min(r) AS r_span
            FROM t
            GROUP BY segment
            HAVING late < greatest($low, $dead) * early),
h AS (SELECT t.*, x < $low * early AND k > greatest(5, t.n / 10) AS beyond FROM t JOIN b USING (segment)),
m AS (SELECT *, share_left(beyond, segment, step) AS share FROM h),
o AS (SELECT segment, min(step) FILTER (WHERE beyond AND share >= 0.5) AS step_start, max(step) AS step_end
    FROM m
    GROUP BY segment)
SELECT step_start, step_end, late AS observed, early AS expected, segment, late / early AS times, $low AS low,
    CASE WHEN r_late IS NULL THEN '' ELSE printf('; reward %.3g -> %.3g', r_early, r_late) END AS reward_note
FROM b JOIN o USING (segment) WHERE n >= 20 AND early > 0 AND step_start IS NOT NULL
    AND (late < $dead * early OR late < $low * early AND coalesce(r_late - r_early <= $gain * r_span, false))
        ORDER BY step_start
