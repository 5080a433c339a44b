from dledger_mq.message.compiled import (
    AskedValues,
    Chain,
    ChainedKeys,
    ChooseRuns,
    EncodeRecords,
    FoldEntry,
    FoldUsual,
    ParseRecords,
    ReadBatch,
)

read_batch: ReadBatch
encode_records: EncodeRecords
parse_records: ParseRecords
fold_usual: FoldUsual
fold_entry: FoldEntry
chain: Chain
chained_keys: ChainedKeys
asked_values: AskedValues
chosen_runs: ChooseRuns
