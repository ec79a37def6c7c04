-- The table `swing` is made from grad_norm and act_norm.
-- Two contrasts of a step's log norms that cancel what all layers share: the slope over depth (as a ratio of the first
-- to the last layer), and the layer farthest from the median layer. Each is held against its own rows before.
WITH best AS (SELECT * FROM swing
    WHERE rows_before >= 6 AND rows_after >= 6 AND gap > $gap * CASE WHEN layer IS NULL THEN 1 ELSE 2 END AND abs(shift) > $shift
        AND jump * sign(shift) > $sudden * abs(shift)
    QUALIFY row_number() OVER (PARTITION BY segment ORDER BY gap DESC) = 1),
m AS (SELECT segment, step, max(moved) AS forward FROM swing GROUP BY segment, step)
SELECT step AS step_start, last AS step_end, exp(shift) AS observed, 1.0 AS expected, segment, layer,
    CASE WHEN layer IS NULL THEN printf('the ratio of the first layer''s gradient norm to the last one''s is %.3gx what it was', exp(shift))
        ELSE printf('layer %d''s gradient norm is %.3gx what it was against the median layer', layer, exp(shift)) END AS how
FROM best JOIN m USING (segment, step)
WHERE coalesce(forward <= $forward, true)
ORDER BY step_start
