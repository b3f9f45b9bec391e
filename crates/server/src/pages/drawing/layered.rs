//! The layout of a graph in layers: each node stands below all it follows. Longest paths give the layers, two barycentre sweeps the order in
//! them, and a least-squares fit the places. Deterministic and pure; draws nothing.

use std::collections::BTreeSet;

/// Beyond this a drawing helps no reader: the table is shown alone.
pub(crate) const MOST_NODES: usize = 300;
/// Places in all layers, those included through which long edges pass. Keeps a layout below some milliseconds.
const MOST_SLOTS: usize = 4_000;

pub(crate) const NODE_WIDTH: i64 = 176;
pub(crate) const NODE_HEIGHT: i64 = 46;
/// What an edge needs that passes a layer.
const PASS_WIDTH: i64 = 16;
const GAP: i64 = 20;
const LAYER_GAP: i64 = 38;
const MARGIN: i64 = 8;

/// Where everything stands, in pixels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The upper left corner of each node.
    pub(crate) places: Vec<(i64, i64)>,
    /// From the lower side of a node to the upper side of one that follows it. Points come in pairs: through each layer that an edge
    /// passes it goes straight down.
    pub(crate) routes: Vec<Vec<(i64, i64)>>,
    pub(crate) width: i64,
    pub(crate) height: i64,
}

/// A node, or the place where an edge passes a layer.
struct Slot {
    layer: usize,
    width: i64,
    above: Vec<usize>,
    below: Vec<usize>,
}

/// `edges` lead from a node to one that follows it. None: there are too many nodes or edges, or some follow each other in a circle.
pub(crate) fn layout(count: usize, edges: &[(usize, usize)]) -> Option<Layout> {
    if count == 0 || count > MOST_NODES || edges.iter().any(|(from, to)| *from >= count || *to >= count) {
        return None;
    }
    let edges: BTreeSet<(usize, usize)> = edges.iter().copied().collect();
    let layers = layers(count, &edges)?;
    let (mut slots, chains) = slots(&layers, &edges)?;
    let mut rows = vec![Vec::new(); layers.iter().max()? + 1];
    slots.iter().enumerate().for_each(|(slot, it)| rows[it.layer].push(slot));
    order(&mut rows, &slots);
    let centres = centres(&rows, &slots);
    let width = slots.iter().zip(&centres).map(|(slot, at)| at + slot.width / 2).max()? + MARGIN;
    let top = |layer: usize| MARGIN + layer as i64 * (NODE_HEIGHT + LAYER_GAP);
    slots.truncate(count);
    let places = slots.iter().zip(&centres).map(|(slot, at)| (at - NODE_WIDTH / 2, top(slot.layer))).collect();
    let route = |chain: &Vec<usize>| {
        let first = layers[chain[0]];
        let (last, steps) = (chain.len() - 1, chain.iter().enumerate());
        let points = steps.flat_map(|(step, slot)| {
            let (x, y) = (centres[*slot], top(first + step));
            // A node is left at its lower side and entered at its upper side; what is passed is passed whole.
            [(x, y), (x, y + NODE_HEIGHT)].into_iter().skip(usize::from(step == 0)).take(if step == last {
                1
            } else {
                2
            })
        });
        points.collect()
    };
    let routes = chains.iter().map(route).collect();
    Some(Layout { places, routes, width, height: top(rows.len()) - LAYER_GAP + MARGIN })
}

/// The length of the longest path to each node. None if there is a circle.
fn layers(count: usize, edges: &BTreeSet<(usize, usize)>) -> Option<Vec<usize>> {
    let (mut layers, mut open) = (vec![0; count], vec![0_usize; count]);
    edges.iter().for_each(|(_, to)| open[*to] += 1);
    let mut ready: Vec<usize> = (0..count).filter(|node| open[*node] == 0).collect();
    let mut seen = 0;
    while let Some(node) = ready.pop() {
        seen += 1;
        for (_, to) in edges.range((node, 0)..(node + 1, 0)) {
            layers[*to] = layers[*to].max(layers[node] + 1);
            open[*to] -= 1;
            if open[*to] == 0 {
                ready.push(*to);
            }
        }
    }
    (seen == count).then_some(layers)
}

/// The nodes first, by their numbers; and for each edge its slots from top to bottom.
fn slots(layers: &[usize], edges: &BTreeSet<(usize, usize)>) -> Option<(Vec<Slot>, Vec<Vec<usize>>)> {
    let slot = |layer, width| Slot { layer, width, above: Vec::new(), below: Vec::new() };
    let mut slots: Vec<Slot> = layers.iter().map(|layer| slot(*layer, NODE_WIDTH)).collect();
    let mut chains = Vec::with_capacity(edges.len());
    for (from, to) in edges {
        let passed = layers[*from] + 1..layers[*to];
        if slots.len() + passed.len() > MOST_SLOTS || chains.len() == MOST_SLOTS {
            return None;
        }
        let mut chain = vec![*from];
        for layer in passed {
            chain.push(slots.len());
            slots.push(slot(layer, PASS_WIDTH));
        }
        chain.push(*to);
        for pair in chain.windows(2) {
            slots[pair[0]].below.push(pair[1]);
            slots[pair[1]].above.push(pair[0]);
        }
        chains.push(chain);
    }
    Some((slots, chains))
}

/// Sorts each layer by where its neighbours stand: downwards by those above, then upwards by those below.
fn order(rows: &mut [Vec<usize>], slots: &[Slot]) {
    let mut position = vec![0; slots.len()];
    let note =
        |row: &[usize], position: &mut [usize]| row.iter().enumerate().for_each(|(at, slot)| position[*slot] = at);
    rows.iter().for_each(|row| note(row, &mut position));
    let mut sweep = |row: &mut Vec<usize>, above: bool| {
        let mean = |slot: &usize| {
            let neighbours = if above { &slots[*slot].above } else { &slots[*slot].below };
            // In thousandths. One without neighbours stays where it is.
            let sum: usize = neighbours.iter().map(|neighbour| position[*neighbour]).sum();
            if neighbours.is_empty() { position[*slot] * 1_000 } else { sum * 1_000 / neighbours.len() }
        };
        row.sort_by_cached_key(mean);
        note(row, &mut position);
    };
    rows.iter_mut().skip(1).for_each(|row| sweep(row, true));
    rows.iter_mut().rev().skip(1).for_each(|row| sweep(row, false));
}

/// The middle of each slot. Each layer is fitted to the one above it, then to the one below it.
fn centres(rows: &[Vec<usize>], slots: &[Slot]) -> Vec<i64> {
    let mut centres = vec![0; slots.len()];
    for row in rows {
        let mut at = 0;
        for slot in row {
            centres[*slot] = at + slots[*slot].width / 2;
            at += slots[*slot].width + GAP;
        }
    }
    rows.iter().skip(1).for_each(|row| fit(row, slots, &mut centres, true));
    rows.iter().rev().skip(1).for_each(|row| fit(row, slots, &mut centres, false));
    rows.iter().skip(1).for_each(|row| fit(row, slots, &mut centres, true));
    let left = slots.iter().zip(&centres).map(|(slot, at)| at - slot.width / 2).min().unwrap_or(0);
    centres.iter().map(|at| at - left + MARGIN).collect()
}

/// Moves the slots of a layer as near as possible to the mean of their neighbours, with their order and their gaps. What
/// would overlap is moved as a block to the mean of what its members want.
fn fit(row: &[usize], slots: &[Slot], centres: &mut [i64], above: bool) {
    // Where a slot stands in a block whose first slot stands at 0.
    let mut shifts = Vec::with_capacity(row.len());
    let mut shift = 0;
    for (at, slot) in row.iter().enumerate() {
        shift += if at == 0 { 0 } else { (slots[row[at - 1]].width + slots[*slot].width) / 2 + GAP };
        shifts.push(shift);
    }
    let wanted = row.iter().zip(&shifts).map(|(slot, shift)| {
        let neighbours = if above { &slots[*slot].above } else { &slots[*slot].below };
        let sum: i64 = neighbours.iter().map(|neighbour| centres[*neighbour]).sum();
        let wish = if neighbours.is_empty() { centres[*slot] } else { sum / neighbours.len() as i64 };
        wish - shift
    });
    // Blocks: the sum of what is wanted, and how many want it. Their means never fall from left to right.
    let mut blocks: Vec<(i64, i64)> = Vec::new();
    for wish in wanted.collect::<Vec<_>>() {
        let mut block = (wish, 1);
        while let Some((sum, count)) = blocks.pop_if(|(sum, count)| *sum * block.1 > block.0 * *count) {
            block = (block.0 + sum, block.1 + count);
        }
        blocks.push(block);
    }
    let places = blocks.iter().flat_map(|(sum, count)| (0..*count).map(move |_| sum.div_euclid(*count)));
    for ((slot, shift), place) in row.iter().zip(&shifts).zip(places) {
        centres[*slot] = place + shift;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_chain_goes_straight_down() {
        let layout = layout(3, &[(0, 1), (1, 2)]).unwrap();
        assert_eq!(layout.places, [(8, 8), (8, 92), (8, 176)]);
        assert_eq!(layout.routes, [vec![(96, 54), (96, 92)], vec![(96, 138), (96, 176)]]);
        assert_eq!((layout.width, layout.height), (192, 230));
    }

    #[test]
    fn a_node_stands_below_all_it_follows_and_an_edge_passes_beside_others() {
        let layout = layout(3, &[(0, 1), (1, 2), (0, 2)]).unwrap();
        assert!(layout.places[0].1 < layout.places[1].1 && layout.places[1].1 < layout.places[2].1);
        let long = layout.routes.iter().find(|route| route.len() == 4).unwrap();
        let (left, right) = (layout.places[1].0, layout.places[1].0 + NODE_WIDTH);
        assert!(long[1].0 < left || long[1].0 > right, "{long:?} crosses {left}..{right}");
    }

    #[test]
    fn a_fan_is_symmetric() {
        let layout = layout(5, &[(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4)]).unwrap();
        assert_eq!(layout.places[0].0, layout.places[2].0);
        assert_eq!(layout.places[4].0, layout.places[2].0);
        assert_eq!(layout.places[3].0 - layout.places[2].0, layout.places[2].0 - layout.places[1].0);
    }

    #[test]
    fn crossed_edges_are_uncrossed() {
        let layout = layout(4, &[(0, 3), (1, 2)]).unwrap();
        assert!(layout.places[3].0 < layout.places[2].0);
    }

    #[test]
    fn what_cannot_be_drawn_is_not_drawn() {
        assert_eq!(layout(0, &[]), None);
        assert_eq!(layout(MOST_NODES + 1, &[]), None);
        assert_eq!(layout(2, &[(0, 1), (1, 0)]), None);
        assert_eq!(layout(1, &[(0, 0)]), None);
        assert_eq!(layout(2, &[(0, 5)]), None);
        // Every node follows every earlier one: 45,000 edges.
        let all: Vec<_> = (0..MOST_NODES).flat_map(|to| (0..to).map(move |from| (from, to))).collect();
        assert_eq!(layout(MOST_NODES, &all), None);
    }

    /// A graph without circles: each edge leads to a greater number, which then gets another name.
    fn graphs() -> impl Strategy<Value = (usize, Vec<(usize, usize)>)> {
        (1..60_usize).prop_flat_map(|count| {
            let edges = prop::collection::vec((0..count, 0..count), 0..120);
            let names = Just((0..count).collect::<Vec<_>>()).prop_shuffle();
            (edges, names).prop_map(move |(edges, names)| {
                let forward = edges.into_iter().filter(|(a, b)| a != b);
                let forward = forward.map(|(a, b)| (names[a.min(b)], names[a.max(b)]));
                (count, forward.collect())
            })
        })
    }

    proptest! {
        #[test]
        fn nodes_never_overlap_and_edges_lead_downwards((count, edges) in graphs()) {
            let Some(drawn) = layout(count, &edges) else { return Ok(()) };
            prop_assert_eq!(&drawn, &layout(count, &edges).unwrap());
            for (n, (x, y)) in drawn.places.iter().enumerate() {
                prop_assert!(*x >= 0 && *y >= 0 && x + NODE_WIDTH <= drawn.width && y + NODE_HEIGHT <= drawn.height);
                for (other_x, other_y) in &drawn.places[n + 1..] {
                    let apart = (x - other_x).abs() >= NODE_WIDTH + GAP || (y - other_y).abs() >= NODE_HEIGHT + LAYER_GAP;
                    prop_assert!(apart, "({}, {}) and ({}, {})", x, y, other_x, other_y);
                }
            }
            let wanted: BTreeSet<_> = edges.iter().copied().collect();
            prop_assert_eq!(drawn.routes.len(), wanted.len());
            for ((from, to), route) in wanted.iter().zip(&drawn.routes) {
                prop_assert!(drawn.places[*from].1 < drawn.places[*to].1);
                prop_assert!(route.windows(2).all(|pair| pair[0].1 < pair[1].1), "{:?}", route);
                let crosses = |(x, y): &(i64, i64)| route.windows(2).any(|pair| {
                    pair[0].0 == pair[1].0 && pair[1].1 - pair[0].1 == NODE_HEIGHT
                        && pair[0].1 == *y && (*x..=*x + NODE_WIDTH).contains(&pair[0].0)
                });
                prop_assert!(!drawn.places.iter().any(crosses), "{:?} crosses a node", route);
            }
        }
    }
}
