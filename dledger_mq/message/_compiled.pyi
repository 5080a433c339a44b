from dledger_mq.message.compiled import (
    AskedValues,
    Chain,
    ChainedKeys,
    ChooseRuns,
    EncodeRecords,
    FoldUsual,
    ParseRecords,
    PropertyJson,
    PropertyValues,
    ReadBatch,
    RecordColumns,
)

read_batch: ReadBatch
encode_records: EncodeRecords
parse_records: ParseRecords
fold_usual: FoldUsual
chain: Chain
chained_keys: ChainedKeys
asked_values: AskedValues
chosen_runs: ChooseRuns
record_columns: RecordColumns
property_json: PropertyJson
property_values: PropertyValues
