-- The first layer of act_norm_ratio is apart too.
WITH f AS (SELECT segment, arg_min(stray, layer) AS first FROM trunk WHERE act_norm_ratio IS NOT NULL GROUP BY segment)
SELECT onset AS step_start, g.last AS step_end, first AS observed, 0.0 AS expected, segment, growth, 'act_norm_ratio' AS signal
FROM gap g JOIN origin USING (segment) JOIN f USING (segment)
WHERE main AND onset IS NOT NULL AND rows_after >= 8 AND after >= $opened * before AND growth >= $growth AND first >= $least
   AND starts_at IS NULL
