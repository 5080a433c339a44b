import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.rocketmq.client.trace.TraceBean;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;

/**
 * Reads bodies of messages of the trace topic with the library's own decoder: a line of Base64 on standard input each.
 * Writes a line for each record, its values parted by tabs, and an empty line after each body.
 */
public final class TraceReader {
    public static void main(String[] none) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String body = new String(Base64.getDecoder().decode(line), StandardCharsets.UTF_8);
            for (TraceContext context : TraceDataEncoder.decoderFromTraceDataString(body)) {
                TraceBean bean = context.getTraceBeans().get(0);
                Object[] values = {context.getTraceType(), context.getTimeStamp(), context.getRegionId(), context.getGroupName(),
                    context.getRequestId().length() == 32, context.getCostTime(), context.isSuccess(), context.getContextCode(),
                    bean.getTopic(), bean.getMsgId(), bean.getTags(), bean.getKeys(), bean.getStoreHost(), bean.getBodyLength(),
                    bean.getRetryTimes(), bean.getMsgType(), bean.getOffsetMsgId(), bean.getTransactionId(),
                    bean.getTransactionState(), bean.isFromTransactionCheck()};
                StringBuilder row = new StringBuilder();
                for (Object value : values) {
                    row.append(row.length() == 0 ? "" : "\t").append(value);
                }
                System.out.println(row);
            }
            System.out.println();
        }
        Runtime.getRuntime().halt(0);
    }
}
