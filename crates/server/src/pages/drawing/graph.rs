//! The graph of a workflow: its nodes with their states, and what follows what. Layouts are kept by topology, because states change
//! far more often than edges.

use super::layered::{Layout, NODE_HEIGHT, NODE_WIDTH, layout};
use super::{Tone, shortened};
use maud::{Markup, html};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

const NAME_CHARS: usize = 22;
const DETAIL_CHARS: usize = 24;
/// Topologies that are kept: an intent has a handful.
const MOST_KEPT: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) href: Option<String>,
    pub(crate) tone: Tone,
    /// Its status, as the API says it.
    pub(crate) status: String,
    /// Beside the status: how long it took, say.
    pub(crate) detail: Option<String>,
}

/// Layouts of the graphs that were drawn last.
#[derive(Default)]
pub(crate) struct Layouts(Mutex<VecDeque<([u8; 32], Option<Arc<Layout>>)>>);

impl Layouts {
    /// None if it is not drawn: see `layered::layout`.
    fn of(&self, count: usize, edges: &[(usize, usize)]) -> Option<Arc<Layout>> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&count.to_le_bytes());
        for (from, to) in edges {
            hasher.update(&from.to_le_bytes()).update(&to.to_le_bytes());
        }
        let topology = *hasher.finalize().as_bytes();
        let kept = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = kept().iter().find(|(of, _)| *of == topology) {
            return known.clone();
        }
        let made = layout(count, edges).map(Arc::new);
        let mut kept = kept();
        kept.truncate(MOST_KEPT - 1);
        kept.push_front((topology, made.clone()));
        made
    }
}

/// `edges` lead from a node to one that follows it, by their places in `nodes`. Nothing is drawn of a graph that is too large: the table
/// beside it says the same. `what` is read to those who do not see the drawing.
pub(crate) fn graph(what: &str, nodes: &[Node], edges: &[(usize, usize)], layouts: &Layouts) -> Option<Markup> {
    let layout = layouts.of(nodes.len(), edges)?;
    Some(html! {
        // Wider than a small screen: it scrolls by itself, also by the keyboard.
        div class="drawing-scroll" tabindex="0" role="region" aria-label=(what) {
            svg class="drawing graph" width=(layout.width) height=(layout.height) role="group" aria-label=(summary(what, nodes)) {
                @for route in &layout.routes {
                    path class="edge" d=(path(route)) {}
                    @if let Some((x, y)) = route.last() {
                        path class="head" d={ "M" (x - 4) " " (y - 7) "L" (x + 4) " " (y - 7) "L" (x) " " (y) "Z" } {}
                    }
                }
                @for (node, place) in nodes.iter().zip(&layout.places) {
                    @match &node.href {
                        Some(href) => a href=(href) { (box_of(node, *place)) },
                        None => g { (box_of(node, *place)) },
                    }
                }
            }
        }
    })
}

fn box_of(node: &Node, (x, y): (i64, i64)) -> Markup {
    let detail = node.detail.as_ref().map_or(node.status.clone(), |detail| format!("{} {detail}", node.status));
    html! {
        title { (node.name) ": " (detail) }
        rect class={ "node " (node.tone.class()) } x=(x) y=(y) width=(NODE_WIDTH) height=(NODE_HEIGHT) rx="6" {}
        text class="name" x=(x + 10) y=(y + 19) { (shortened(&node.name, NAME_CHARS)) }
        text class="detail" x=(x + 10) y=(y + 37) {
            tspan class=(node.tone.class()) { (node.tone.mark()) } " " (shortened(&detail, DETAIL_CHARS))
        }
    }
}

/// Bent between layers, straight through them.
fn path(route: &[(i64, i64)]) -> String {
    let mut path = String::new();
    for (at, (x, y)) in route.iter().enumerate() {
        let bend = at.checked_sub(1).filter(|_| at % 2 == 1).map(|before| route[before]);
        let written = match bend {
            None if at == 0 => write!(path, "M{x} {y}"),
            None => write!(path, "L{x} {y}"),
            Some((from_x, from_y)) => {
                let middle = from_y.midpoint(*y);
                write!(path, "C{from_x} {middle} {x} {middle} {x} {y}")
            }
        };
        written.expect("a string takes everything");
    }
    path
}

fn summary(what: &str, nodes: &[Node]) -> String {
    let in_tone = |tone| nodes.iter().filter(|node| node.tone == tone).count();
    let (done, failed) = (in_tone(Tone::Done), in_tone(Tone::Failed));
    let failed = if failed == 0 { String::new() } else { format!(", {failed} failed") };
    format!("{what}: {} nodes, {done} done{failed}", nodes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, tone: Tone) -> Node {
        let (status, detail) = (format!("{tone:?}").to_lowercase(), Some("1.2s".to_owned()));
        Node { name: name.to_owned(), href: Some(format!("/n/{name}")), tone, status, detail }
    }

    #[test]
    fn each_node_is_a_box_with_its_state_in_words_and_each_edge_an_arrow() {
        let nodes = [node("resolve", Tone::Done), node("<spawn>", Tone::Failed)];
        let drawn = graph("launch-run", &nodes, &[(0, 1)], &Layouts::default()).unwrap().into_string();
        assert!(drawn.contains(r#"<path class="edge" d="M96 54C96 73 96 73 96 92">"#), "{drawn}");
        assert!(drawn.contains("launch-run: 2 nodes, 1 done, 1 failed"), "{drawn}");
        assert!(drawn.contains("<title>&lt;spawn&gt;: failed 1.2s</title>"), "{drawn}");
        assert!(!drawn.contains("<spawn>") && !drawn.contains("style="), "{drawn}");
    }

    #[test]
    fn a_topology_is_laid_out_once_and_few_are_kept() {
        let layouts = Layouts::default();
        let first = layouts.of(2, &[(0, 1)]).unwrap();
        assert!(Arc::ptr_eq(&first, &layouts.of(2, &[(0, 1)]).unwrap()));
        for count in 3..200 {
            layouts.of(count, &[]);
        }
        assert_eq!(layouts.0.lock().unwrap().len(), MOST_KEPT);
        assert!(!Arc::ptr_eq(&first, &layouts.of(2, &[(0, 1)]).unwrap()));
    }

    #[test]
    fn a_graph_that_is_too_large_is_left_to_the_table() {
        let nodes = vec![node("n", Tone::Waits); 301];
        assert!(graph("fan", &nodes, &[], &Layouts::default()).is_none());
        assert!(graph("fan", &nodes[..300], &[], &Layouts::default()).is_some());
    }
}
