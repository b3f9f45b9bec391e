//! Folders of more entries than are linked in one transaction: whatever dies between the pieces, such a folder is kept and swept as a whole.

use crate::bench::{Bench, Harm, now, settings, spec};
use crate::machines::Plan;
use engine::Config;
use engine::content::Small;
use model::spec::RunSpec;
use model::time::{HOUR, MINUTE};
use model::tree::{Entry, Node, Tree, TreeRef};
use model::{Failure, Refused};
use store::blob::{BlobHash, BlobName};
use store::{Lane, Moment};

const KEPT_MS: i64 = 2 * HOUR;
/// Links in three transactions, 500 at most in each.
const FILES: usize = 1_201;
const PIECES: usize = 3;
/// What sending one folder writes before its links: it announces the document, and says that it is kept.
const BEFORE_LINKS: usize = 2;

/// A folder of many small files, all different.
struct Large {
    files: Vec<Small>,
    folder: Small,
}

impl Large {
    fn new() -> Large {
        let file = |number: usize| {
            let bytes = format!("file {number}").into_bytes();
            Small { is_tree: false, hash: BlobHash::of(&bytes).to_string(), bytes }
        };
        let files: Vec<Small> = (0..FILES).map(file).collect();
        let nodes = files.iter().map(|file| Node::File { hash: file.hash.clone(), size: 4, mode: 0o644 }).collect();
        Large { folder: folder(nodes), files }
    }

    fn hashes(&self) -> Vec<String> {
        self.files.iter().map(|file| file.hash.clone()).collect()
    }

    fn spec(&self) -> RunSpec {
        RunSpec { files: Some(TreeRef { hash: self.folder.hash.clone(), files: FILES as i64, bytes: 4 }), ..spec() }
    }

    fn send_files(&self, bench: &Bench) {
        now(bench.engine.keep_pack(bench.org, self.files.clone())).unwrap();
    }

    fn send_folder(&self, bench: &Bench) -> Result<(), Failure> {
        now(bench.engine.keep_pack(bench.org, vec![self.folder.clone()]))
    }

    /// How many of its files have bytes.
    fn with_bytes(&self, bench: &Bench) -> usize {
        let has = |hash: &String| {
            let name = BlobName::Content { org: bench.org, hash: hash.parse::<BlobHash>().unwrap() };
            bench.engine.blobs.has(&name).unwrap()
        };
        self.hashes().iter().filter(|hash| has(hash)).count()
    }

    /// How many of its files a client would have to send.
    fn missing(&self, bench: &Bench) -> usize {
        now(bench.engine.missing_blobs(bench.org, self.hashes())).unwrap().len()
    }

    fn is_here(&self, bench: &Bench) -> bool {
        now(bench.engine.missing_trees(bench.org, vec![self.folder.hash.clone()])).unwrap().is_empty()
    }
}

fn folder(nodes: Vec<Node>) -> Small {
    let entry = |(number, node)| Entry { name: format!("{number:05}"), node };
    let bytes = Tree::of(nodes.into_iter().enumerate().map(entry).collect()).document();
    Small { is_tree: true, hash: BlobHash::of(&bytes).to_string(), bytes }
}

fn bench() -> Bench {
    let mut config = Config::default();
    config.timings.contents_kept_ms = KEPT_MS;
    Bench::with(settings(2), config)
}

#[test]
fn a_large_folder_is_linked_in_pieces() {
    let (bench, large) = (bench(), Large::new());
    large.send_files(&bench);
    bench.crashes.count();
    large.send_folder(&bench).unwrap();
    let writes = bench.crashes.writes.lock().unwrap().clone();
    assert_eq!(writes[BEFORE_LINKS..], ["tree.link"; PIECES], "{writes:?}");
}

/// A sender that comes again after each of them. Half of the links are as good as none; all of them keep every file as long as a run needs
/// the folder, and let every file go when the folder goes.
#[test]
fn a_large_folder_whose_links_were_cut_off_is_kept_and_swept_as_a_whole() {
    for piece in 0..PIECES {
        for harm in [Harm::Dies(Moment::Before), Harm::Dies(Moment::After), Harm::Unheard] {
            let what = format!("piece {piece}, {harm:?}");
            let (mut bench, large) = (bench(), Large::new());
            large.send_files(&bench);
            bench.crashes.arm_with(BEFORE_LINKS + piece, harm);
            // Nothing tells the sender of the last commit, which is the only one that makes the folder whole.
            assert!(large.send_folder(&bench).is_err(), "{what}");
            assert!(bench.crashes.has_struck() && bench.revive(), "{what}");
            let whole = piece + 1 == PIECES && harm != Harm::Dies(Moment::Before);
            assert_eq!(large.is_here(&bench), whole, "{what}");
            large.send_folder(&bench).unwrap();
            assert!(large.is_here(&bench), "{what}");
            bench.runners.plan = Some(Plan::Run);
            let run = bench.submit(large.spec());
            bench.advance(KEPT_MS + HOUR);
            assert_eq!((large.with_bytes(&bench), large.missing(&bench)), (FILES, 0), "{what}: an open run needs it");
            bench.exits(run, 0);
            bench.advance(KEPT_MS + 30 * MINUTE);
            assert_eq!((large.with_bytes(&bench), large.missing(&bench)), (0, FILES), "{what}");
            assert!(!large.is_here(&bench), "{what}");
            bench.check();
        }
    }
}

/// Some of its links are written and the upload is never finished.
#[test]
fn a_large_folder_that_was_never_finished_holds_nothing() {
    let (mut bench, large) = (bench(), Large::new());
    large.send_files(&bench);
    bench.crashes.arm(BEFORE_LINKS + 1, Moment::After);
    large.send_folder(&bench).unwrap_err();
    assert!(bench.revive());
    bench.advance(KEPT_MS - 10 * MINUTE);
    assert_eq!(large.missing(&bench), 0);
    bench.advance(40 * MINUTE);
    assert_eq!((large.with_bytes(&bench), large.missing(&bench)), (0, FILES));
}

/// It is refused in its last piece, when the first ones are written: what they met that was not here, or is not what it is named as, must
/// not stay for ever when it comes later.
#[test]
fn a_large_folder_that_is_refused_keeps_none_of_what_it_names() {
    let (mut bench, large) = (bench(), Large::new());
    large.send_files(&bench);
    let (late, plain) = (b"comes later".to_vec(), b"a file and no folder".to_vec());
    let (late_hash, plain_hash) = (BlobHash::of(&late).to_string(), BlobHash::of(&plain).to_string());
    let small = |hash: &String, bytes: &[u8]| Small { is_tree: false, hash: hash.clone(), bytes: bytes.to_vec() };
    now(bench.engine.keep_pack(bench.org, vec![small(&plain_hash, &plain)])).unwrap();
    // A client that announced it and died.
    let (org, announced) = (bench.org, late_hash.clone());
    let announce = move |tx: &mut store::Tx| store::content::announce(tx, org, &announced);
    now(bench.store.write(Lane::Normal, "test.announce", announce)).unwrap();
    let file = |hash: &String| Node::File { hash: hash.clone(), size: 4, mode: 0o644 };
    for bad in [file(&late_hash), Node::Folder { hash: plain_hash.clone() }] {
        let nodes = large.hashes().iter().map(file).chain([bad]).collect();
        let refused = now(bench.engine.keep_pack(bench.org, vec![folder(nodes)])).unwrap_err();
        assert!(matches!(refused.refused(), Some(Refused::Gone { .. })), "{refused:?}");
    }
    now(bench.engine.keep_pack(bench.org, vec![small(&late_hash, &late)])).unwrap();
    let here = |bench: &Bench| {
        let missing = now(bench.engine.missing_blobs(bench.org, vec![late_hash.clone(), plain_hash.clone()])).unwrap();
        2 - missing.len()
    };
    assert_eq!(here(&bench), 2);
    bench.advance(KEPT_MS + 30 * MINUTE);
    assert_eq!((here(&bench), large.with_bytes(&bench)), (0, 0));
}
