-- Beyond for good: from the onset on at least half of the rows, which is to say their median, stay beyond the bound.
WITH t AS (SELECT segment, step, coalesce('layer ' || layer, module) AS place, layer, moe_max_vio AS x
    FROM layer
    WHERE fin(moe_max_vio)),
n AS (SELECT *, row_number() OVER (PARTITION BY segment, place ORDER BY step) AS k,
    count(*) OVER (PARTITION BY segment, place) AS n
    FROM t),
b AS (SELECT segment, place, any_value(layer) AS layer, any_value(n) AS n,
    median(x) FILTER (WHERE k <= greatest(5, n / 10)) AS early,
        median(x) FILTER (WHERE k > n - greatest(3, n / 20)) AS late
    FROM n
    GROUP BY segment, place),
h AS (SELECT n.segment, place, step, x > $growth * early AS beyond FROM n JOIN b USING (segment, place)),
m AS (SELECT *, share_left(beyond, (segment, place), step) AS share FROM h),
o AS (SELECT segment, place, min(step) FILTER (WHERE beyond AND share >= 0.5) AS step_start, max(step) AS step_end
    FROM m
    GROUP BY segment, place)
SELECT step_start, step_end, late AS observed, early AS expected, segment, layer, place
FROM b JOIN o USING (segment, place)
    WHERE n >= 10 AND late > $level AND late > $growth * early
    ORDER BY late / early DESC
