from dledger_mq.message.compiled import (
    AskedValues,
    Chain,
    ChainedKeys,
    ChooseRuns,
    EncodeRecords,
    FoldUsual,
    JudgeRecords,
    ParseRecords,
    ReadBatch,
)

read_batch: ReadBatch
encode_records: EncodeRecords
parse_records: ParseRecords
fold_usual: FoldUsual
chain: Chain
chained_keys: ChainedKeys
asked_values: AskedValues
judged_records: JudgeRecords
chosen_runs: ChooseRuns
