WITH t AS (SELECT segment, label, step, value AS x, row_number() OVER w AS k,
    count(*) OVER (PARTITION BY segment, label) AS n
    FROM component
    WHERE signal = 'reward_component' AND axis = 'train' AND fin(value)
        WINDOW w AS (PARTITION BY segment, label ORDER BY step)),
s AS (SELECT segment, label, any_value(n) AS n, median(x) FILTER (WHERE k <= greatest(1, n / 10)) AS early,
    median(x) FILTER (WHERE k > n - greatest(1, n / 10)) AS late,
        max(x) - min(x) AS span, min(step) AS first_step, max(step) AS last_step, max(abs(x)) AS scale
            FROM t
            GROUP BY segment, label),
easy AS (SELECT *
    FROM s
    WHERE regexp_matches(lower(label), 'format|tag|length|style|xml') AND late - early > $rise * greatest(scale, 1e-9)),
hard AS (SELECT *
    FROM s
    WHERE regexp_matches(lower(label), 'accura|correct|answer|exact|pass|verif|math|code') AND early > 0
        AND late < (1 - $fall) * early)
SELECT coalesce((SELECT min(step)
    FROM t
    WHERE t.segment = hard.segment AND t.label = hard.label AND x < (1 - $fall / 2) * hard.early AND k > 1),
    hard.first_step) AS step_start,
    hard.last_step AS step_end,
    hard.late AS observed, hard.early AS expected, hard.segment, easy.label, hard.label AS task,
        easy.early AS easy_from, easy.late AS easy_to
FROM hard JOIN easy USING (segment) WHERE hard.n >= 3 ORDER BY step_start LIMIT 1
