//! Agent side: make the folder, start the keeper, wait for its acknowledgement.
