//! A model's file on the disk: opened only if it is a file, replaced only as a whole.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::read::Input;

/// Links that are followed until one of them must be going round in circles.
const MAX_LINKS: usize = 40;

impl Input for File {
    fn len(&self) -> Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn reader(&self, start: u64) -> Result<impl Read> {
        let mut file = self;
        file.seek(SeekFrom::Start(start))?;
        Ok(file)
    }

    fn bytes(&self, start: u64, len: usize) -> Result<Bytes> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| ErrorKind::OutOfMemory)?;
        bytes.resize(len, 0);
        self.reader(start)?.read_exact(&mut bytes)?;
        Ok(bytes.into())
    }
}

/// Opens a regular file. A pipe would wait for its other end.
pub fn open(path: &Path) -> Result<File> {
    check_kind(&std::fs::metadata(path)?)?;
    // What is there now may be something else.
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

/// Puts a whole new file in the place of an old one, whose permissions it keeps; links are followed, to where there is nothing yet
/// too. A file that may not be written is left alone: one whose mode lets nobody write it, whoever asks, and one that this process
/// cannot open for writing.
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
    // As for any new file, the process's mask decides who may read it.
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder.prefix(".polars-kmeans-").tempfile_in(folder)?;
    if let Some(old) = old {
        file.as_file().set_permissions(old.permissions())?;
    }
    file.write_all(bytes)?;
    file.persist(path)?;
    Ok(())
}

/// Where a path leads, be there something or not.
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
        // A link's path begins where the link is.
        let to = std::fs::read_link(&path)?;
        path.pop();
        path.push(to);
    }
    Err(Error::other("too many links"))
}
