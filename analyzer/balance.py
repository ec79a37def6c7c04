"""How evenly the experts were used before and after the sharpest change of a run: the table `balance`, a row a segment.

Means over the layers of load variation, dead share, and router entropy, five rows on either side of the change and at the
end. What a number means is for a rule to say. Empty without router signals by layer. docs/rules.md has the columns.
"""

from __future__ import annotations

#: Columns of `layer` and `train` that the table is made from, whatever the rules declare.
LAYER = ("moe_load_cv", "moe_dead_frac", "router_entropy")
TRAIN = ("lr",)
#: Rows that must be read before a change can have five on either side.
LEAST = 12

TABLE_SQL = (
    "CREATE TABLE balance (segment INTEGER, onset BIGINT, last BIGINT, cv_before DOUBLE, cv_after DOUBLE, cv_end DOUBLE, "
    "dead_before DOUBLE, dead_after DOUBLE, dead_end DOUBLE, entropy_before DOUBLE, entropy_after DOUBLE, entropy_end DOUBLE, "
    "at_once DOUBLE, lr_growth DOUBLE)"
)
#: The change is where load variation, dead share, or entropy moved most between the five rows before and after; of the rows
#: around it, whose medians are the same, the one that differs most from the row before it. `at_once`
#: is the share of the entropy's move that the first row made; `lr_growth` what the learning rate did at that place.
BALANCE_SQL = f"""
INSERT INTO balance
WITH s AS (SELECT segment, step, avg(moe_load_cv) AS cv, avg(moe_dead_frac) AS dead, avg(router_entropy) AS entropy
    FROM layer GROUP BY segment, step HAVING count(moe_load_cv) + count(moe_dead_frac) + count(router_entropy) > 0),
w AS (SELECT s.segment, s.step, s.entropy, lr, row_number() OVER w AS k, count(*) OVER (PARTITION BY s.segment) AS n,
        median(s.cv) OVER before AS c0, median(s.cv) OVER after AS c1, median(s.dead) OVER before AS d0, median(s.dead) OVER after AS d1,
        median(s.entropy) OVER before AS e0, median(s.entropy) OVER after AS e1, median(lr) OVER before AS l0,
        max(lr) OVER after AS l1,
        coalesce(abs(s.entropy - lag(s.entropy) OVER w), abs(s.cv - lag(s.cv) OVER w), abs(s.dead - lag(s.dead) OVER w), 0) AS jump
    FROM s LEFT JOIN train USING (segment, step)
    WINDOW w AS (PARTITION BY s.segment ORDER BY s.step),
        before AS (PARTITION BY s.segment ORDER BY s.step ROWS BETWEEN 5 PRECEDING AND 1 PRECEDING),
        after AS (PARTITION BY s.segment ORDER BY s.step ROWS BETWEEN CURRENT ROW AND 4 FOLLOWING)),
e AS (SELECT segment, max(step) AS last, median(cv) AS c2, median(dead) AS d2, median(entropy) AS e2
    FROM (SELECT *, row_number() OVER (PARTITION BY segment ORDER BY step DESC) AS k FROM s) WHERE k <= 5 GROUP BY segment),
m AS (SELECT *, greatest(coalesce(c1 / nullif(c0, 0), 1), 1 + 2 * coalesce(d1 - d0, 0), coalesce(e0 / nullif(e1, 0), 1)) AS move
    FROM w WHERE n >= {LEAST} AND k > 5 AND k <= n - 3),
b AS (SELECT m.*, row_number() OVER (PARTITION BY segment ORDER BY jump DESC, step) AS place
    FROM m JOIN (SELECT segment, max(move) AS most FROM m GROUP BY segment) USING (segment) WHERE move - 1 >= 0.9 * (most - 1))
SELECT segment, step, last, c0, c1, c2, d0, d1, d2, e0, e1, e2, (entropy - e0) / nullif(e1 - e0, 0), l1 / nullif(l0, 0)
FROM b JOIN e USING (segment) WHERE place = 1
"""
