//! Bytes of a remote that are not what they were: a typed error, never another value.

use crate::world::{Origin, folder, head, remote};
use adapters::remote::RemoteError;
use calls::reach::available;
use calls::{Code, Fault};
use std::path::{Path, PathBuf};

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        if entry.path().is_dir() { found.extend(files(&entry.path())) } else { found.push(entry.path()) }
    }
    found
}

#[test]
fn no_damage_is_read_as_something_else() {
    let (folder, mut origin) = (folder(), Origin::default());
    let node = origin.blob(b"the bytes of a blob");
    let commit = origin.commit_of(&[node], &[]);
    let fine = remote(folder.path());
    fine.push(&mut origin, &head("main"), commit, false).unwrap();
    let expected = available(&mut origin, commit.into(), 100).unwrap();
    for folder_name in ["refs", "manifests", "segments", "blobs"] {
        for file in files(&folder.path().join(folder_name)) {
            let good = std::fs::read(&file).unwrap();
            let flipped = (0..good.len()).map(|at| {
                let mut bad = good.clone();
                bad[at] ^= 1 << (at % 8);
                bad
            });
            for bad in flipped.chain([Vec::new(), good[..good.len() / 2].to_vec()]) {
                std::fs::write(&file, &bad).unwrap();
                let opened = remote(folder.path()).fetch(&head("main"));
                let read = opened.map(|mut opened| {
                    let commit = opened.commit;
                    let closure = available(&mut opened, commit.into(), 100)?;
                    let blob = *closure.blobs.first().expect("there is one");
                    let read = std::io::copy(&mut opened.blob(blob).unwrap(), &mut std::io::sink());
                    let what = |error: std::io::Error| Fault::Source(model::Trouble::internal(error.to_string()));
                    read.map_err(what).map(|_| closure)
                });
                // Some bytes mean nothing: between records, and the order of keys in JSON.
                if let Ok(Ok(closure)) = read {
                    assert_eq!(closure, expected, "{}", file.display());
                }
            }
            std::fs::write(&file, &good).unwrap();
        }
    }
}

#[test]
fn the_error_says_which_key_and_what_is_wrong() {
    let (folder, mut origin) = (folder(), Origin::default());
    let commit = origin.commit(0..3, &[]);
    remote(folder.path()).push(&mut origin, &head("main"), commit, false).unwrap();
    let break_it = |name: &str, bytes: &dyn Fn(Vec<u8>) -> Vec<u8>| {
        let file = files(&folder.path().join(name)).pop().unwrap();
        let good = std::fs::read(&file).unwrap();
        std::fs::write(&file, bytes(good.clone())).unwrap();
        let result = remote(folder.path()).fetch(&head("main"));
        let result =
            result.and_then(|mut opened| available(&mut opened, commit.into(), 100).map_err(RemoteError::Source));
        std::fs::write(&file, good).unwrap();
        result.unwrap_err()
    };
    type Damage<'a> = &'a dyn Fn(Vec<u8>) -> Vec<u8>;
    let table: [(&str, Damage, Code, &str); 5] = [
        ("refs", &|_| b"main".to_vec(), Code::InvalidHeader, "not_json"),
        ("refs", &|_| b"{\"version\":2}".to_vec(), Code::InvalidHeader, "version_unknown"),
        ("manifests", &|_| b"{}".to_vec(), Code::InvalidPayload, "id_mismatch"),
        ("segments", &|good| good[..good.len() - 1].to_vec(), Code::InvalidBounds, "index_length"),
        (
            "segments",
            &|mut good| {
                let last = good.len() - 1;
                good[last] ^= 1;
                good
            },
            Code::InvalidPayload,
            "index_hash",
        ),
    ];
    for (name, bytes, code, detail) in table {
        let RemoteError::Damaged { key, why } = break_it(name, bytes) else { panic!("{detail}") };
        assert_eq!((why.code, why.detail), (code, detail));
        assert!(key.starts_with(name), "{key}");
    }
    let zeroed = break_it("segments", &|mut good| {
        good[20..30].fill(0);
        good
    });
    assert!(matches!(zeroed, RemoteError::Source(Fault::Unreadable { .. })), "{zeroed}");
    // A segment that is gone is missing, not empty.
    std::fs::remove_dir_all(folder.path().join("segments")).unwrap();
    let error = remote(folder.path()).fetch(&head("main")).err().unwrap();
    assert!(error.to_string().contains("is missing on the remote"), "{error}");
}
