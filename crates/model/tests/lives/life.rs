//! A life with a memory: every state it was ever in is kept once, and every answer of its `step` is remembered, so that
//! a world is a handful of small numbers.

use crate::charting::{Chart, Names};
use crate::samples::NOW;
use model::{Outcome, Refused, Timestamp};
use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::rc::Rc;

/// The number of a remembered state.
pub type Id = u16;
/// The place of a row that is not made yet.
pub const NONE: Id = Id::MAX;
pub type Map<K, V> = HashMap<K, V, BuildHasherDefault<Fnv>>;

/// A table that is filled while the life is lived, and the events that belong to it.
pub type Sheet<E, V> = (Names<E, V>, fn(&V) -> bool);
type Step<E, V, C> = fn(&E, &V, Timestamp) -> Result<Outcome<E, C>, Refused>;

pub enum Applied<C> {
    Moved(Id, Rc<[C]>),
    Unchanged,
    Refused(Rc<str>),
}

impl<C> Clone for Applied<C> {
    fn clone(&self) -> Self {
        match self {
            Applied::Moved(id, consequences) => Applied::Moved(*id, consequences.clone()),
            Applied::Unchanged => Applied::Unchanged,
            Applied::Refused(why) => Applied::Refused(why.clone()),
        }
    }
}

pub struct Life<E, V, C> {
    step: Step<E, V, C>,
    /// Forgets what cannot decide anything, so that the states are finitely many.
    tidy: fn(&mut E),
    sheets: Vec<Sheet<E, V>>,
    states: Vec<E>,
    numbers: Map<E, Id>,
    events: Vec<V>,
    answers: Map<(Id, Id), Applied<C>>,
    pub taken: Vec<Chart>,
}

impl<E: Debug + Clone + Eq + Hash, V: PartialEq + Clone + Debug, C: Clone> Life<E, V, C> {
    pub fn new(step: Step<E, V, C>, tidy: fn(&mut E), sheets: Vec<Sheet<E, V>>) -> Self {
        let taken = vec![Chart::default(); sheets.len()];
        Life {
            step,
            tidy,
            sheets,
            states: vec![],
            numbers: Map::default(),
            events: vec![],
            answers: Map::default(),
            taken,
        }
    }

    pub fn keep(&mut self, mut entity: E) -> Id {
        (self.tidy)(&mut entity);
        let next = Id::try_from(self.states.len()).expect("fewer states of one life than 65,536");
        if let Some(known) = self.numbers.get(&entity) {
            return *known;
        }
        self.states.push(entity.clone());
        self.numbers.insert(entity, next);
        next
    }

    pub fn get(&self, id: Id) -> &E {
        &self.states[id as usize]
    }

    /// The state after a change that no event makes: counters, which the caller keeps.
    pub fn edited(&mut self, id: Id, change: impl FnOnce(&mut E)) -> Id {
        let mut entity = self.get(id).clone();
        change(&mut entity);
        self.keep(entity)
    }

    pub fn step(&mut self, id: Id, event: &V) -> Applied<C> {
        let number = self.event_number(event);
        if let Some(answer) = self.answers.get(&(id, number)) {
            return answer.clone();
        }
        let entity = self.get(id).clone();
        let result = self.apply(&entity, event);
        let answer = match result {
            Ok(Outcome::Moved { next, consequences }) => Applied::Moved(self.keep(next), consequences.into()),
            Ok(Outcome::Unchanged) => Applied::Unchanged,
            Err(refused) => Applied::Refused(refused.to_string().into()),
        };
        self.answers.insert((id, number), answer.clone());
        answer
    }

    /// One move, written into the tables that are filled.
    pub fn apply(&mut self, entity: &E, event: &V) -> Result<Outcome<E, C>, Refused> {
        let result = (self.step)(entity, event, NOW);
        for ((names, concerns), chart) in self.sheets.iter().zip(&mut self.taken) {
            if concerns(event) {
                chart.record(names, entity, event, &result);
            }
        }
        result
    }

    fn event_number(&mut self, event: &V) -> Id {
        let known = self.events.iter().position(|seen| seen == event);
        let number = known.unwrap_or_else(|| {
            self.events.push(event.clone());
            self.events.len() - 1
        });
        Id::try_from(number).expect("few events")
    }
}

/// At most eight of something, without an allocation: worlds are copied by the million.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Few {
    length: usize,
    ids: [Id; 8],
}

impl Few {
    pub fn push(&mut self, id: Id) {
        self.ids[self.length] = id;
        self.length += 1;
    }
    pub fn clear(&mut self) {
        *self = Few::default();
    }
    pub fn retain(&mut self, keep: impl Fn(Id) -> bool) {
        *self = self.iter().copied().filter(|id| keep(*id)).collect();
    }
}

impl FromIterator<Id> for Few {
    fn from_iter<I: IntoIterator<Item = Id>>(ids: I) -> Few {
        let mut few = Few::default();
        ids.into_iter().for_each(|id| few.push(id));
        few
    }
}

impl<'f> IntoIterator for &'f Few {
    type Item = &'f Id;
    type IntoIter = std::slice::Iter<'f, Id>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl std::ops::Deref for Few {
    type Target = [Id];
    fn deref(&self) -> &[Id] {
        &self.ids[..self.length]
    }
}

impl std::ops::DerefMut for Few {
    fn deref_mut(&mut self) -> &mut [Id] {
        &mut self.ids[..self.length]
    }
}

/// Small keys by the million: the standard hasher is too slow for them in an unoptimised build.
#[derive(Default)]
pub struct Fnv(u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.write_u64(u64::from_ne_bytes(*word));
        }
        for byte in rest {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u16(&mut self, word: u16) {
        self.write_u64(u64::from(word));
    }
    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }
    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}
