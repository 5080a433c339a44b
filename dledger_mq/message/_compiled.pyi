from dledger_mq.message.compiled import (
    AskedValues,
    BatchKeys,
    BatchRecords,
    Chain,
    ChainedKeys,
    ChooseRuns,
    CutFrames,
    EachAnswer,
    EncodeRecords,
    FoldEntry,
    FoldUsual,
    JoinAnswers,
    JudgeRecords,
    ParseRecords,
    PlaceRecords,
    PropertyJson,
    PropertyValues,
    ReadBatch,
    ReadSends,
    ReceivedMessages,
    ReceiveFrames,
    RecordColumns,
    SendEach,
)

read_batch: ReadBatch
batch_keys: BatchKeys
batch_records: BatchRecords
place_records: PlaceRecords
encode_records: EncodeRecords
parse_records: ParseRecords
fold_usual: FoldUsual
fold_entry: FoldEntry
chain: Chain
chained_keys: ChainedKeys
asked_values: AskedValues
judged_records: JudgeRecords
chosen_runs: ChooseRuns
cut_frames: CutFrames
read_sends: ReadSends
join_answers: JoinAnswers
received_messages: ReceivedMessages
each_answer: EachAnswer
receive_frames: ReceiveFrames
send_each: SendEach
record_columns: RecordColumns
property_json: PropertyJson
property_values: PropertyValues
