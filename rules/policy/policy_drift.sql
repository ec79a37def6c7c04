-- Beyond for good: from the onset on at least half of the rows, which is to say their median, stay beyond the bound.
WITH t AS (SELECT segment, step, 'kl_ref' AS signal, kl_ref AS x, coalesce(score, reward) AS r, $level AS level
    FROM train
    WHERE fin(kl_ref)
    UNION ALL SELECT segment, step, 'kl_old', abs(kl_old), coalesce(score, reward), $old FROM train WHERE fin(kl_old)),
n AS (SELECT *, row_number() OVER (PARTITION BY segment, signal ORDER BY step) AS k,
    count(*) OVER (PARTITION BY segment, signal) AS n
    FROM t),
b AS (SELECT segment, signal, any_value(n) AS n, any_value(level) AS level,
    median(x) FILTER (WHERE k > n / 3 AND k <= 2 * n / 3) AS mid,
    median(x) FILTER (WHERE k > n - greatest(3, n / 20)) AS late,
        median(r) FILTER (WHERE k > n / 3 AND k <= 2 * n / 3) AS r_mid,
            median(r) FILTER (WHERE k > n - greatest(3, n / 20)) AS r_late
            FROM n
            GROUP BY segment, signal),
h AS (SELECT n.segment, signal, step, x > $absurd OR k > n.n / 3 AND n.n >= 15
    AND x > least($ratio * mid, n.level) AS beyond
    FROM n JOIN b USING (segment, signal)),
m AS (SELECT *, share_left(beyond, (segment, signal), step) AS share FROM h),
o AS (SELECT segment, signal, min(step) FILTER (WHERE beyond AND share >= 0.5) AS step_start, max(step) AS step_end
    FROM m
    GROUP BY segment, signal)
SELECT step_start, step_end, late AS observed, mid AS expected, segment, signal,
    CASE WHEN mid IS NULL THEN printf('%s is at %.3g', signal, late) ELSE printf('%s %.3g -> %.3g', signal, mid, late) END AS what
FROM b JOIN o USING (segment, signal)
    WHERE late > $absurd OR n >= 15 AND late > level
        AND (late > $ratio * greatest(mid, 1e-6) OR late > 10 * level AND mid <= level)
        AND coalesce(r_late <= r_mid + 1e-9, true)
    ORDER BY step_start
