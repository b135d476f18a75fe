//! A session's jobs: saves, then announces; rebuilds itself from the folders.
