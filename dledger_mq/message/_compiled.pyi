from dledger_mq.message.compiled import (
    AskedValues,
    Chain,
    ChainedKeys,
    ChooseRuns,
    CutFrames,
    EncodeRecords,
    FoldUsual,
    JoinAnswers,
    ParseRecords,
    ReadBatch,
    ReadSends,
)

read_batch: ReadBatch
encode_records: EncodeRecords
parse_records: ParseRecords
fold_usual: FoldUsual
chain: Chain
chained_keys: ChainedKeys
asked_values: AskedValues
chosen_runs: ChooseRuns
cut_frames: CutFrames
read_sends: ReadSends
join_answers: JoinAnswers
