//! The file of a model on the disk. Only regular files are opened, and a file is only replaced as a whole.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Result, Write};
use std::path::{Path, PathBuf};

/// The most links that are followed. A longer chain is taken for a cycle.
const MAX_LINKS: usize = 40;

/// Opens a regular file. Opening a pipe could wait forever for its other end.
pub fn open(path: &Path) -> Result<File> {
    check_kind(&std::fs::metadata(path)?)?;
    // The path may lead to something else by now. So the opened file is checked again.
    let file = without_waiting().read(true).open(path)?;
    check_kind(&file.metadata()?)?;
    Ok(file)
}

fn without_waiting() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK | libc::O_NOCTTY);
    options
}

/// Refuses devices, pipes and folders.
fn check_kind(metadata: &Metadata) -> Result<()> {
    match metadata.is_file() {
        true => Ok(()),
        false if metadata.is_dir() => Err(ErrorKind::IsADirectory.into()),
        false => Err(Error::new(ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// Replaces a file by a new one with these bytes, or creates it. The new file keeps the permissions of the old one. Links are
/// followed, also a link to a path where nothing exists yet. Two kinds of file are left alone: a file whose mode lets no user
/// write (root cannot replace it either), and a file that this process cannot open for writing.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let path = &target(path)?;
    let old = match std::fs::metadata(path) {
        Ok(old) => Some(old),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if let Some(old) = &old {
        check_kind(old)?;
        if old.permissions().readonly() {
            return Err(ErrorKind::PermissionDenied.into());
        }
        without_waiting().write(true).open(path)?;
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    // The umask of the process decides who may read the file, as for any new file.
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder.prefix(".polars-kmeans-").tempfile_in(folder)?;
    if let Some(old) = old {
        file.as_file().set_permissions(old.permissions())?;
    }
    file.write_all(bytes)?;
    file.persist(path)?;
    Ok(())
}

/// The path at the end of a chain of links, whether it exists or not.
fn target(path: &Path) -> Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        let is_link = match std::fs::symlink_metadata(&path) {
            Ok(metadata) => metadata.is_symlink(),
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        if !is_link {
            return Ok(path);
        }
        // The target of a link is relative to the folder of the link.
        let to = std::fs::read_link(&path)?;
        path.pop();
        path.push(to);
    }
    Err(Error::other("too many links"))
}
