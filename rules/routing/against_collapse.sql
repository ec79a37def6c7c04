WITH uneven AS (
    SELECT name, arg_min(segment, x) AS segment, min(step) AS step, avg(ending) AS value, avg(good_ending) AS good,
        count(*) AS layers, arg_max(layer, ending / nullif(good_ending, 0)) AS layer
    FROM against
    WHERE name IN ('moe_load_cv', 'moe_max_vio') AND rank IS NULL AND direction = 1 AND NOT nonfinite
    GROUP BY name HAVING avg(ending) >= $uneven * avg(good_ending)
),
dead AS (
    SELECT min(x) AS x FROM against
    WHERE rank IS NULL AND direction <> 0 AND ((name = 'moe_dead_frac' AND ending - good_ending >= $dead)
        OR (name = 'router_entropy' AND good_ending > 0 AND ending <= $narrow * good_ending))
)
SELECT step AS step_start, NULL::BIGINT AS step_end, value AS observed, good AS expected, uneven.segment, name AS signal, layers
FROM uneven, dead
WHERE dead.x IS NOT NULL AND NOT EXISTS (SELECT 1 FROM against WHERE nonfinite)
ORDER BY step, name LIMIT 1
