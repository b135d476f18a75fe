//! Records a conversation tree and plays it back offline.
