//! What belongs to an object: everything it names, and what that names. For garbage collection, export, and the question whether a
//! result is whole.

use crate::id::Reference;
use crate::read::{Fault, Read, object};
use crate::uri::Blob;
use std::collections::BTreeSet;

/// Objects and blobs below some roots, the roots included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Closure {
    /// Children before parents: stored in this order, an object is never there without what it names.
    pub objects: Vec<Reference>,
    pub blobs: BTreeSet<Blob>,
}

/// Everything below the roots. The walk stops at what `have` knows: a store that has an object has all below it.
pub fn closure<R: Read + ?Sized>(
    from: &mut R,
    roots: impl IntoIterator<Item = Reference>,
    have: &dyn Fn(Reference) -> bool,
    limit: usize,
) -> Result<Closure, Fault<R::Error>> {
    let mut closure = Closure::default();
    let mut seen = BTreeSet::new();
    // A stack of our own: a chain of a million commits is as deep as it is long.
    let mut stack: Vec<(Reference, bool)> = roots.into_iter().map(|root| (root, false)).collect();
    stack.reverse();
    while let Some((reference, below_is_done)) = stack.pop() {
        if below_is_done {
            closure.objects.push(reference);
            continue;
        }
        if have(reference) || !seen.insert(reference) {
            continue;
        }
        if seen.len() > limit {
            return Err(Fault::TooLarge { what: "the closure of an object", limit });
        }
        let found = object(from, reference)?;
        closure.blobs.extend(found.blob());
        stack.push((reference, true));
        stack.extend(found.references().into_iter().rev().map(|below| (below, false)));
    }
    Ok(closure)
}

/// The closure of an object that is whole: every record is here and valid, and every blob is here.
pub fn available<R: Read + ?Sized>(from: &mut R, root: Reference, limit: usize) -> Result<Closure, Fault<R::Error>> {
    let closure = closure(from, [root], &|_| false, limit)?;
    for blob in &closure.blobs {
        if !from.has_blob(*blob).map_err(Fault::Source)? {
            return Err(Fault::MissingBlob(*blob));
        }
    }
    Ok(closure)
}
